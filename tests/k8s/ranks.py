"""What holds for a verifier of several pods: they find each other, and nobody else finds them."""

from __future__ import annotations

from collections.abc import Iterator

from services.contract.errors import StartError
from tests.k8s.cluster import Cluster, Manifest, Workload, name_of
from tests.k8s.network import CLIENT, STRANGER, connects
from tests.k8s.settings import read

PORT = 50054
"""Where the first pod waits for the others; torch and NCCL choose more."""


def ranks(cluster: Cluster) -> Iterator[str]:
    """The pods of a group have one machine's part each, and what they need to begin together."""
    for manifest in cluster.of("LeaderWorkerSet"):
        template = manifest["spec"]["leaderWorkerTemplate"]
        if template.get("restartPolicy") != "RecreateGroupOnPodRestart":
            yield f"{name_of(manifest)}: goes on without a lost rank"
        if cluster.find("Service", manifest["metadata"]["name"]):
            yield f"{name_of(manifest)}: a Service of ours has the name of its controller's"
        pods = [w for w in cluster.workloads if w.owner == manifest["metadata"]["name"]]
        yield from _equal(*pods)
        for pod in pods:
            yield from (f"{pod.name}: {what}" for what in _of_a_group(cluster, pod, template))
    yield from _bounded(cluster)
    yield from _apart(cluster)


def _equal(first: Workload, other: Workload) -> Iterator[str]:
    for key in ("image", "resources", "volumeMounts", "securityContext", "envFrom"):
        if first.container.get(key) != other.container.get(key):
            yield f"{other.name}: its {key} is not that of {first.name}"
    for key in ("volumes", "tolerations", "priorityClassName", "terminationGracePeriodSeconds"):
        if first.pod.get(key) != other.pod.get(key):
            yield f"{other.name}: its {key} is not that of {first.name}"


def _of_a_group(cluster: Cluster, pod: Workload, template: Manifest) -> Iterator[str]:
    try:
        settings = read("verifier", cluster.environment(pod))
    except StartError as error:
        yield str(error)
        return
    devices = int(pod.container["resources"]["limits"].get("nvidia.com/gpu", 0))
    if settings.tensor_parallel != settings.nodes * devices or settings.nodes != template["size"]:
        yield f"{settings.tensor_parallel} ranks, and {template['size']} pods of {devices} devices"
    if settings.node != (0 if pod.serves else 1):
        yield f"is machine {settings.node}"
    if settings.rank_address != f"verifiers-0.verifiers.paceline:{PORT}":
        yield f"finds the first pod at {settings.rank_address}"
    secret = str(settings.rank_secret_file)
    volumes = {v["name"]: v for v in pod.pod["volumes"] if "secret" in v}
    mounts = [m for m in pod.container["volumeMounts"] if m["name"] in volumes]
    if not any(secret.startswith(f"{m['mountPath']}/") for m in mounts):
        yield f"has no secret at {secret}"


def _bounded(cluster: Cluster) -> Iterator[str]:
    """Evicting one of them ends a verifier, so a budget bounds that."""
    for pod in cluster.ranks:
        budgets = [
            budget["spec"]
            for budget in cluster.of("PodDisruptionBudget")
            if budget["spec"]["selector"]["matchLabels"].items() <= pod.labels.items()
        ]
        if [budget.get("maxUnavailable") for budget in budgets] != [1]:
            yield f"{pod.name}: {len(budgets)} budgets"


def _apart(cluster: Cluster) -> Iterator[str]:
    """They reach each other on any port, and others neither reach nor are reached."""
    verifier = cluster.workload("verifier")
    others = [cluster.workload(name) for name in ("orchestrator", "drafter")]
    for pod in cluster.ranks:
        for port in (PORT, 40_000):
            for ends in ((pod, verifier), (verifier, pod), (pod, pod)):
                if not connects(cluster, *ends, port):
                    yield f"{ends[0].name} does not reach {ends[1].name}:{port}"
            for stranger in (*others, CLIENT, STRANGER):
                if connects(cluster, stranger, pod, port):
                    yield f"{pod.name}:{port} is open to others"
        if connects(cluster, pod, STRANGER, 6379):
            yield f"{pod.name} reaches Redis, of which it knows nothing"
        for service in cluster.of("Service"):
            if pod in cluster.selected(service["spec"]["selector"]):
                yield f"{name_of(service)}: leads to {pod.name}, which serves nobody"
    if cluster.ranks:
        for stranger in (*others, CLIENT, STRANGER):
            if connects(cluster, stranger, verifier, PORT):
                yield f"{verifier.name}:{PORT} is open to others"
