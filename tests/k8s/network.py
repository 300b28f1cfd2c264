"""Which connections the NetworkPolicies let through, and which they must."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tests.k8s.cluster import Cluster, Labels, Manifest, Workload
from tests.k8s.wiring import NAMESPACE

Direction = Literal["ingress", "egress"]
_PEER: dict[Direction, str] = {"ingress": "from", "egress": "to"}


@dataclass(frozen=True)
class End:
    """A pod, as a policy sees it."""

    labels: Labels
    namespace: str = NAMESPACE

    @classmethod
    def of(cls, workload: Workload) -> End:
        """A pod of the overlay."""
        return cls(workload.labels)


CLIENT = End({"paceline-client": "true"}, "elsewhere")
STRANGER = End({}, "elsewhere")
PROMETHEUS = End({}, "monitoring")
DNS = End({"k8s-app": "kube-dns"}, "kube-system")


def flows(cluster: Cluster) -> Iterator[str]:
    """What must get through does."""
    for source, target, port in _wanted(cluster):
        yield from _stopped(cluster, source, target, port)
    for service in cluster.of("Service"):
        for workload in cluster.selected(service["spec"]["selector"]):
            for port in service["spec"]["ports"]:
                if not _reachable(cluster, workload, workload.port(port["targetPort"])):
                    yield f"{workload.name}: nobody may reach port {port['targetPort']}"


def _wanted(cluster: Cluster) -> Iterator[tuple[End | Workload, Workload | End, int]]:
    orchestrator, verifier, drafter = map(cluster.workload, ("orchestrator", "verifier", "drafter"))
    yield orchestrator, verifier, 50052
    yield orchestrator, drafter, 50053
    yield CLIENT, orchestrator, 50051
    for process in cluster.processes:
        yield PROMETHEUS, process, 9464
        yield process, DNS, 53
        yield process, _redis(cluster), 6379
        if cluster.find("Deployment", "otel-collector"):
            yield process, cluster.workload("otel-collector"), 4317


def _redis(cluster: Cluster) -> Workload | End:
    """The overlay's own, or a pod or machine that we know nothing of."""
    return cluster.workload("redis") if cluster.find("StatefulSet", "redis") else STRANGER


def walls(cluster: Cluster) -> Iterator[str]:
    """What has no business there does not get through."""
    denied = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    if denied not in [policy["spec"] for policy in cluster.of("NetworkPolicy")]:
        yield "what no policy speaks of is open"
    orchestrator, verifier, drafter = map(cluster.workload, ("orchestrator", "verifier", "drafter"))
    forbidden: list[tuple[End | Workload, Workload | End, int]]
    forbidden = [(one, STRANGER, 443) for one in (verifier, drafter, orchestrator)]
    forbidden += [(CLIENT, verifier, 50052), (CLIENT, drafter, 50053), (CLIENT, verifier, 9464)]
    forbidden += [(drafter, verifier, 50052), (verifier, drafter, 50053)]
    forbidden += [(STRANGER, orchestrator, 50051)]
    if cluster.find("StatefulSet", "redis"):
        forbidden.append((CLIENT, cluster.workload("redis"), 6379))
    for source, target, port in forbidden:
        if not list(_stopped(cluster, source, target, port)):
            yield f"{_name(source)} may reach {_name(target)}:{port}"


def connects(cluster: Cluster, source: End | Workload, target: Workload | End, port: int) -> bool:
    """Whether nothing stops this connection."""
    return not list(_stopped(cluster, source, target, port))


def _stopped(
    cluster: Cluster, source: End | Workload, target: Workload | End, port: int
) -> Iterator[str]:
    """Where a connection ends, if it does; pods elsewhere have no policies of ours."""
    way = f"{_name(source)} → {_name(target)}:{port}"
    if isinstance(source, Workload) and not _allowed(
        cluster, "egress", source, _end(target), port, target
    ):
        yield f"{way}: may not leave"
    if isinstance(target, Workload) and not _allowed(
        cluster, "ingress", target, _end(source), port, target
    ):
        yield f"{way}: may not enter"


def _name(end: End | Workload) -> str:
    return end.name if isinstance(end, Workload) else f"{end.namespace}{dict(end.labels)}"


def _end(end: End | Workload) -> End:
    return End.of(end) if isinstance(end, Workload) else end


def _rules(cluster: Cluster, direction: Direction, workload: Workload) -> list[Manifest] | None:
    """The rules that hold for a pod in a direction; None = no policy does, so all is allowed."""
    found: list[Manifest] = []
    bound = False
    for policy in cluster.of("NetworkPolicy"):
        spec = policy["spec"]
        selects = spec["podSelector"].get("matchLabels", {}).items() <= workload.labels.items()
        if selects and direction.capitalize() in spec["policyTypes"]:
            bound = True
            found += spec.get(direction, ())
    return found if bound else None


def _allowed(
    cluster: Cluster,
    direction: Direction,
    bound: Workload,
    peer: End,
    port: int,
    target: Workload | End,
) -> bool:
    rules = _rules(cluster, direction, bound)
    return rules is None or any(
        _at(rule, port, target) and _with(rule, _PEER[direction], peer) for rule in rules
    )


def _at(rule: Manifest, port: int, target: Workload | End) -> bool:
    ports = rule.get("ports")
    return ports is None or any(port == _number(p["port"], target) for p in ports)


def _number(port: str | int, target: Workload | End) -> int | None:
    if isinstance(port, str):
        return target.ports.get(port) if isinstance(target, Workload) else None
    return port


def _with(rule: Manifest, key: str, peer: End) -> bool:
    return key not in rule or any(_is(selector, peer) for selector in rule[key])


def _is(selector: Manifest, peer: End) -> bool:
    if "ipBlock" in selector:
        return False
    spaces = selector.get("namespaceSelector")
    here = {"kubernetes.io/metadata.name": peer.namespace}
    in_space = (
        peer.namespace == NAMESPACE
        if spaces is None
        else spaces.get("matchLabels", {}).items() <= here.items()
    )
    labels = selector.get("podSelector", {}).get("matchLabels", {})
    return in_space and labels.items() <= peer.labels.items()


def _reachable(cluster: Cluster, workload: Workload, port: int | None) -> bool:
    rules = _rules(cluster, "ingress", workload)
    return rules is None or any(_at(rule, port or 0, workload) for rule in rules)
