"""What every pod must be: restricted, bounded, and given time to leave."""

import re
from collections.abc import Iterator
from itertools import pairwise

from tests.k8s.cluster import Cluster, Manifest, Workload

_SPARE_SECONDS = 10
_VLLM_START_SECONDS = 1200
_WRITABLE = {"/tmp", "/cache", "/dev/shm", "/data"}
_ZONE, _NODE = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
_SPREAD = {"orchestrator": {_ZONE, _NODE}, "verifier": {_ZONE, _NODE}, "drafter": {_NODE}}
_RANKING = ("orchestrator", "verifier", "drafter")
_ROLLING = {
    "orchestrator": {"maxSurge": 1, "maxUnavailable": 0},
    "drafter": {"maxSurge": 0, "maxUnavailable": 1},
    "verifier": {"maxSurge": 0, "maxUnavailable": 1},
}


def restricted(cluster: Cluster) -> Iterator[str]:
    """The namespace enforces the pod security standard `restricted`; beside it, what we add.

    That pods fit the standard, write to no image and have no token of the API: `make scan`.
    """
    for namespace in cluster.of("Namespace"):
        labels = namespace["metadata"]["labels"]
        if labels.get("pod-security.kubernetes.io/enforce") != "restricted":
            yield "Namespace: does not enforce restricted"
    for workload in cluster.workloads:
        if workload.pod.get("enableServiceLinks") is not False:
            yield f"{workload.name}: gets variables named after Services"
        for container in workload.containers:
            for mount in container.get("volumeMounts", ()):
                if not mount.get("readOnly") and mount["mountPath"] not in _WRITABLE:
                    yield f"{workload.name}: may write to {mount['mountPath']}"


def resources(cluster: Cluster) -> Iterator[str]:
    """Memory and devices as requested; no CPU limit, which would stop a round half-way."""
    for workload in cluster.workloads:
        for container in workload.containers:
            given = container.get("resources", {})
            limits, requests = given.get("limits", {}), given.get("requests", {})
            if "cpu" in limits:
                yield f"{workload.name}: has a CPU limit"
            if "cpu" not in requests or "memory" not in requests:
                yield f"{workload.name}: requests {requests}"
            if limits != {name: requests.get(name) for name in limits} or "memory" not in limits:
                yield f"{workload.name}: limits {limits} are not its requests {requests}"


def leaving(cluster: Cluster) -> Iterator[str]:
    """A process that is stopped gets its preStop sleep, its grace time, and some to spare."""
    for workload in cluster.processes:
        sleep = workload.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {})
        if not sleep.get("seconds"):
            yield f"{workload.name}: stops while it is still being called"
        grace = float(cluster.environment(workload).get("PACELINE_GRACE", "nan"))
        needed = sleep.get("seconds", 0) + grace + _SPARE_SECONDS
        given = workload.pod.get("terminationGracePeriodSeconds", 30)
        if not given >= needed:
            yield f"{workload.name}: killed after {given} s, needs {needed}"


def rolling(cluster: Cluster) -> Iterator[str]:
    """Orchestrators are replaced before they go; a worker's device must be free first."""
    for workload in cluster.processes:
        strategy = workload.spec.get("strategy", {}).get("rollingUpdate")
        if strategy != _ROLLING[workload.name]:
            yield f"{workload.name}: rolls with {strategy}"


def placement(cluster: Cluster) -> Iterator[str]:
    """A lost zone or node takes a part of a tier; drafters seek verifiers; by labels that are."""
    for workload in cluster.processes:
        spread = workload.pod.get("topologySpreadConstraints", [])
        for term in [*_attractions(workload.pod.get("affinity", {})), *spread]:
            if not cluster.selected(term["labelSelector"]["matchLabels"]):
                yield f"{workload.name}: placed by pods that are not there"
        over = {one["topologyKey"] for one in spread}
        if over != _SPREAD[workload.name]:
            yield f"{workload.name}: spread over {sorted(over)}"
        for one in spread:
            if one["whenUnsatisfiable"] != "ScheduleAnyway":
                yield f"{workload.name}: does not start while a zone is lost"
            if one.get("nodeTaintsPolicy") != "Honor":
                yield f"{workload.name}: nodes that it may not use count as empty"


def _attractions(affinity: Manifest) -> list[Manifest]:
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    weighted = affinity.get("podAffinity", {}).get(preferred, [])
    return [one["podAffinityTerm"] for one in weighted]


def engines(cluster: Cluster) -> Iterator[str]:
    """vLLM runs where it is installed, with shared memory and the time that it takes to load."""
    for workload in cluster.processes:
        wanted = cluster.environment(workload).get("PACELINE_ENGINE") == "vllm"
        image = workload.container["image"]
        if wanted != (re.split("[:@]", image.rpartition("/")[2])[0] == "paceline-vllm"):
            yield f"{workload.name}: vLLM {'wanted' if wanted else 'unused'}, the image is {image}"
        if wanted:
            yield from (f"{workload.name}: {what}" for what in _not_for_vllm(workload))


def _not_for_vllm(workload: Workload) -> Iterator[str]:
    mounted = {mount["mountPath"]: mount["name"] for mount in workload.container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in workload.pod["volumes"]}
    shared = volumes.get(mounted.get("/dev/shm", ""), {}).get("emptyDir", {})
    if shared.get("medium") != "Memory" or "sizeLimit" not in shared:
        yield f"shared memory is {shared}"
    probe = workload.container["startupProbe"]
    if probe["periodSeconds"] * probe["failureThreshold"] < _VLLM_START_SECONDS:
        yield "started anew before vLLM has loaded"


def devices(cluster: Cluster) -> Iterator[str]:
    """Who runs on CUDA asks for a device and its nodes; who is missed most has the priority."""
    for workload in cluster.processes:
        wants = cluster.environment(workload).get("PACELINE_DEVICE") == "cuda"
        limits = workload.container["resources"].get("limits", {})
        if wants != ("nvidia.com/gpu" in limits):
            yield f"{workload.name}: device {'wanted' if wants else 'held'}, limits {limits}"
        tolerated = {t.get("key") for t in workload.pod.get("tolerations", ())}
        if wants and "nvidia.com/gpu" not in tolerated:
            yield f"{workload.name}: kept off the nodes with devices"
    yield from _priorities(cluster)


def _priorities(cluster: Cluster) -> Iterator[str]:
    values = {c["metadata"]["name"]: c["value"] for c in cluster.of("PriorityClass")}
    if values:
        classes = [cluster.workload(role).pod.get("priorityClassName") for role in _RANKING]
        for over, under in pairwise(
            zip(_RANKING, [values.get(one, 0) for one in classes], strict=True)
        ):
            if not over[1] > under[1]:
                yield f"{under[0]}: could keep a {over[0]} from its place"
