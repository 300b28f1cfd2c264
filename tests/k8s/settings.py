"""The settings that the manifests give each process: known, well formed, and enough to start."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from orchestrator.main import _door
from services.cluster.beside import BesideSettings
from services.cluster.flags import Flags, flags_of
from services.cluster.process import ROLES, ProcessSettings
from services.contract.errors import StartError
from services.drafter.registry import METHODS
from services.runtime import serving
from services.runtime.options import Settings
from services.runtime.serving.bearer import token_entry
from tests.certificates import Authority
from tests.k8s.cluster import Cluster, Workload

_PREFIX = "PACELINE_"
_PORTS = {"grpc": "PORT", "metrics": "METRICS_PORT", "health": "HEALTH_PORT"}
_OTHERS = ("OTEL_", "HF_", "POD_", "NODE_", "LWS_")


def kinds(role: str) -> list[type[Settings]]:
    """The settings classes that `paceline ROLE` reads."""
    beside: list[type[Settings]] = [BesideSettings] if role == "verifier" else []
    return [ROLES[role].settings_class(), ProcessSettings, *beside]


def read(role: str, environment: Mapping[str, str]) -> Any:
    """The settings of a role in this environment; StartError for a value not allowed."""
    with patch.dict(os.environ, environment, clear=True):
        own, *_ = [Flags(role, "", kind).read(kind) for kind in kinds(role)]
    return own


def known(cluster: Cluster) -> Iterator[str]:
    """Every variable is a setting of the process that gets it, and its value is allowed."""
    for workload in (*cluster.processes, *cluster.ranks):
        role, environment = str(workload.role), cluster.environment(workload)
        names = {flag.variable for kind in kinds(role) for flag in flags_of(kind)}
        for name, value in environment.items():
            if "$(" in value:
                yield f"{workload.name}: {name} is {value}"
            if name.startswith(_PREFIX) and name not in names:
                yield f"{workload.name}: {name} is no setting of it"
            if not name.startswith((_PREFIX, *_OTHERS)):
                yield f"{workload.name}: {name} is nobody's"
        try:
            read(role, environment)
        except StartError as error:
            yield f"{workload.name}: {error}"


def ports(cluster: Cluster) -> Iterator[str]:
    """A process listens where its container says, and workers tell the same to the registry."""
    for workload in cluster.processes:
        environment = cluster.environment(workload)
        for name, setting in _PORTS.items():
            if environment.get(f"PACELINE_{setting}") != str(workload.ports.get(name)):
                yield f"{workload.name}: the port {name} is not PACELINE_{setting}"
        for setting in ("HOST", "METRICS_HOST", "HEALTH_HOST"):
            if environment.get(f"PACELINE_{setting}") != "0.0.0.0":
                yield f"{workload.name}: PACELINE_{setting} keeps others out"
        advertised = environment.get("PACELINE_ADVERTISE")
        if workload.role != "orchestrator" and advertised != f"10.0.0.7:{workload.ports['grpc']}":
            yield f"{workload.name}: registers as {advertised}"
        identity = "ORCHESTRATOR_ID" if workload.role == "orchestrator" else "WORKER_ID"
        if environment.get(f"PACELINE_{identity}") != "a-pod-5d4f8":
            yield f"{workload.name}: is not named after its pod"


def traces(cluster: Cluster) -> Iterator[str]:
    """Where traces are sent a collector is, in this overlay."""
    for workload in cluster.processes:
        environment = cluster.environment(workload)
        sends = environment.get("OTEL_TRACES_EXPORTER") == "otlp"
        address = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").removeprefix("http://")
        host, _, port = address.partition(":")
        service = cluster.find("Service", host)
        found = service is not None and port in {str(p["port"]) for p in service["spec"]["ports"]}
        if sends != found:
            yield f"{workload.name}: traces go to {address or 'nobody'}"


def methods(cluster: Cluster) -> Iterator[str]:
    """Orchestrators ask for a method that the drafters serve, and workers agree on a target."""
    served = read("drafter", cluster.environment(cluster.workload("drafter"))).method_names
    asked = read("orchestrator", cluster.environment(cluster.workload("orchestrator"))).method
    if not set(served) <= METHODS.keys():
        yield f"drafter: no such method as {served}"
    if asked and asked not in served:
        yield f"orchestrator: asks for {asked}, drafters serve {served}"


def protected(cluster: Cluster, folder: Path) -> Iterator[str]:
    """No process refuses to listen beyond loopback as its settings say.

    Secrets are files in `folder`, as cert-manager and the user would make them.
    """
    for workload in cluster.processes:
        environment = _with_files(workload, cluster.environment(workload), folder / workload.name)
        settings = read(str(workload.role), environment)
        try:
            serving.server_credentials(settings.serving_options())
            if workload.role == "orchestrator":
                _door(settings)
                settings.dialing().metadata("10.0.0.7:50052")
            else:
                serving.check_worker(settings.serving_options())
        except StartError as error:
            yield f"{workload.name}: {error}"


def _with_files(workload: Workload, environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment with every mounted secret in `folder`, in place of where it is mounted."""
    folder.mkdir()
    changed = dict(environment)
    mounted = {v["name"]: v["secret"] for v in workload.pod["volumes"] if "secret" in v}
    for mount in workload.container["volumeMounts"]:
        if mount["name"] not in mounted:
            continue
        place = folder / mount["name"]
        _write_secret(place)
        for name, value in environment.items():
            if value.startswith(mount["mountPath"] + "/"):
                changed[name] = value.replace(mount["mountPath"], str(place), 1)
    return changed


def _write_secret(folder: Path) -> None:
    """What cert-manager writes, and a tokens file."""
    files = Authority(folder).issue("some")
    for path, name in ((files.cert, "tls.crt"), (files.key, "tls.key"), (files.ca, "ca.crt")):
        assert path is not None
        path.rename(folder / name)
    tokens = {"tenants": {"acme": {"tokens": [token_entry("a-token-of-a-test")]}}}
    (folder / "tokens.json").write_text(json.dumps(tokens))
