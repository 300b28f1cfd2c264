"""What must fit together by name: selectors, ports, references. Each check yields findings."""

import re
from collections.abc import Iterator

from tests.k8s.cluster import K8S, PROBES, Cluster, Labels, Manifest, Workload, name_of

NAMESPACE = "paceline"
NOT_NAMESPACED = ("Namespace", "PriorityClass")
AUTOSCALERS = ("ScaledObject", "HorizontalPodAutoscaler")
_ROW = re.compile(r"^\| (Secret|ConfigMap) \| `([\w-]+)` \| ([^|]*) \|", re.MULTILINE)


def documented() -> dict[tuple[str, str], set[str]]:
    """What k8s/README.md says the user makes: the keys of each (kind, name)."""
    rows = _ROW.findall((K8S / "README.md").read_text())
    return {(kind, name): set(re.findall(r"`([^`]+)`", keys)) for kind, name, keys in rows}


def selectors(cluster: Cluster) -> Iterator[str]:
    """A workload selects its own pods, a Service somebody's."""
    for workload in cluster.workloads:
        wanted = workload.spec.get("selector", {}).get("matchLabels", {})
        if not wanted.items() <= workload.labels.items():
            yield f"{workload.name}: selects {wanted}, its pods are {workload.labels}"
    for service in cluster.of("Service"):
        if not cluster.selected(service["spec"]["selector"]):
            yield f"{name_of(service)}: selects nothing"


def service_ports(cluster: Cluster) -> Iterator[str]:
    """What a Service leads to is a port of every pod behind it."""
    for service in cluster.of("Service"):
        for workload in cluster.selected(service["spec"]["selector"]):
            for port in service["spec"]["ports"]:
                if workload.port(port.get("targetPort", port["port"])) is None:
                    yield f"{name_of(service)}: {workload.name} has no port {port['targetPort']}"


def probes(cluster: Cluster) -> Iterator[str]:
    """A probe asks a container port; those of Paceline ask health, each for its own name."""
    for workload in cluster.workloads:
        for kind, probe in workload.probes():
            port = _probed(probe)
            if port is not None and workload.port(port) is None:
                yield f"{workload.name}: {kind} asks port {port}, which no container has"
            name = kind.removesuffix("Probe")
            asked = probe.get("grpc", {}).get("service"), probe.get("grpc", {}).get("port")
            if workload.role and asked != (name, workload.ports.get("health")):
                yield f"{workload.name}: {kind} asks {asked}"
    for workload in cluster.processes:
        for kind in PROBES - dict(workload.probes()).keys():
            yield f"{workload.name}: no {kind}"


def _probed(probe: Manifest) -> str | int | None:
    ports = [probe[how]["port"] for how in ("grpc", "httpGet", "tcpSocket") if how in probe]
    return ports[0] if ports else None


def disruption_budgets(cluster: Cluster) -> Iterator[str]:
    """Each bounds one Deployment, in one way, and keeps no broken pod; each process has one."""
    bounded: list[str] = []
    for budget in cluster.of("PodDisruptionBudget"):
        spec = budget["spec"]
        found = [w.name for w in cluster.selected(spec["selector"]["matchLabels"])]
        bounded += found
        if len(found) != 1:
            yield f"{name_of(budget)}: selects {found}"
        if "maxUnavailable" not in spec or "minAvailable" in spec:
            yield f"{name_of(budget)}: a last pod could hold up the drain of its node for ever"
        if spec.get("unhealthyPodEvictionPolicy") != "AlwaysAllow":
            yield f"{name_of(budget)}: a pod that never becomes ready could not be evicted"
    for workload in cluster.processes:
        if workload.name not in bounded:
            yield f"{workload.name}: no PodDisruptionBudget"


def replicas(cluster: Cluster) -> Iterator[str]:
    """How many pods there are is said by an autoscaler, whose target exists, or by the overlay."""
    scaled = set()
    for scaler in cluster.of(*AUTOSCALERS):
        target = scaler["spec"]["scaleTargetRef"]
        scaled.add(target["name"])
        if cluster.find(target.get("kind", "Deployment"), target["name"]) is None:
            yield f"{name_of(scaler)}: scales {target['name']}, which is not there"
    for workload in cluster.processes:
        if workload.owner in scaled and "replicas" in workload.spec:
            yield f"{workload.name}: an autoscaler's, and every apply would set its replicas back"
        if workload.owner not in scaled and "replicas" not in workload.spec:
            yield f"{workload.name}: nobody says how many"


def references(cluster: Cluster) -> Iterator[str]:
    """What pods refer to is in the overlay, is made by cert-manager, or is documented."""
    certificates = {c["spec"]["secretName"] for c in cluster.of("Certificate")}
    for workload in cluster.workloads:
        for kind, name, keys in _referred(workload):
            if kind == "Secret" and name in certificates:
                held = {"tls.crt", "tls.key", "ca.crt"}
            elif (found := cluster.find(kind, name)) is not None:
                held = set(found.get("data", {})) if keys else set()
            elif (kind, name) in documented():
                held = documented()[kind, name]
            else:
                yield f"{workload.name}: {kind} {name} is nowhere"
                continue
            if not keys <= held:
                yield f"{workload.name}: {kind} {name} lacks {', '.join(sorted(keys - held))}"


def _referred(workload: Workload) -> Iterator[tuple[str, str, set[str]]]:
    """Kind, name and the keys wanted of it."""
    yield "ServiceAccount", workload.pod["serviceAccountName"], set()
    if "priorityClassName" in workload.pod:
        yield "PriorityClass", workload.pod["priorityClassName"], set()
    for volume in workload.pod.get("volumes", ()):
        if "configMap" in volume:
            yield "ConfigMap", volume["configMap"]["name"], _items(volume["configMap"])
        if "secret" in volume:
            yield "Secret", volume["secret"]["secretName"], _items(volume["secret"])
        if "persistentVolumeClaim" in volume:
            yield "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"], set()
    for container in workload.containers:
        for source in container.get("envFrom", ()):
            yield "ConfigMap", source["configMapRef"]["name"], set()
        for variable in container.get("env", ()):
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            if reference:
                yield "Secret", reference["name"], {reference["key"]}


def _items(source: Manifest) -> set[str]:
    return {item["key"] for item in source.get("items", ())}


def namespaces_and_labels(cluster: Cluster) -> Iterator[str]:
    """Everything is in one namespace, and says what it belongs to."""
    for manifest in cluster.manifests:
        metadata = manifest["metadata"]
        namespace = None if manifest["kind"] in NOT_NAMESPACED else NAMESPACE
        if metadata.get("namespace") != namespace:
            yield f"{name_of(manifest)}: in the namespace {metadata.get('namespace')}"
        yield from _unlabelled(name_of(manifest), metadata.get("labels", {}))
    for workload in cluster.workloads:
        yield from _unlabelled(f"pods of {workload.name}", workload.labels)


def _unlabelled(who: str, labels: Labels) -> Iterator[str]:
    if labels.get("app.kubernetes.io/part-of") != "paceline":
        yield f"{who}: not labelled as a part of paceline"


def certificates(cluster: Cluster) -> Iterator[str]:
    """Each is of an issuer that is there; workers have the name that links look for."""
    for certificate in cluster.of("Certificate"):
        issuer = certificate["spec"]["issuerRef"]
        if cluster.find(issuer["kind"], issuer["name"]) is None:
            yield f"{name_of(certificate)}: no {issuer['kind']} {issuer['name']}"
    for issuer in cluster.of("Issuer"):
        authority = issuer["spec"].get("ca", {}).get("secretName")
        made = [c for c in cluster.of("Certificate") if c["spec"]["secretName"] == authority]
        if authority is not None and not any(c["spec"].get("isCA") for c in made):
            yield f"{name_of(issuer)}: no Certificate makes its CA {authority}"
    if cluster.of("Certificate"):
        yield from _link_names(cluster)


def _link_names(cluster: Cluster) -> Iterator[str]:
    wanted = cluster.environment(cluster.workload("orchestrator"))["PACELINE_LINK_SERVER_NAME"]
    shown = _issuer(cluster, "orchestrator-link-tls", "client auth")
    for role in ("verifier", "drafter"):
        if wanted not in cluster.get("Certificate", f"{role}-tls")["spec"]["dnsNames"]:
            yield f"Certificate {role}-tls: not for {wanted}"
        if _issuer(cluster, f"{role}-tls", "server auth") != shown:
            yield f"Certificate {role}-tls: its CA is not the one of links"
    front = _issuer(cluster, "orchestrator-tls", "server auth")
    if front == shown or _issuer(cluster, "client-tls", "client auth") != front:
        yield "clients: their CA is not one of their own"


def _issuer(cluster: Cluster, name: str, usage: str) -> str:
    spec = cluster.get("Certificate", name)["spec"]
    assert usage in spec["usages"], f"Certificate {name}: not for {usage}"
    return str(spec["issuerRef"]["name"])


def monitors(cluster: Cluster) -> Iterator[str]:
    """A PodMonitor finds every process, by a port that it has."""
    for monitor in cluster.of("PodMonitor"):
        found = cluster.selected(monitor["spec"]["selector"]["matchLabels"])
        if {w.name for w in found} != {w.name for w in cluster.processes}:
            yield f"{name_of(monitor)}: finds {[w.name for w in found]}"
        for workload in found:
            for endpoint in monitor["spec"]["podMetricsEndpoints"]:
                if endpoint["port"] not in workload.ports:
                    yield f"{name_of(monitor)}: {workload.name} has no port {endpoint['port']}"
