"""One thing broken at a time, and the check that must find it."""

from typing import Any

from tests.k8s.cluster import Cluster, Workload


def orchestrator(cluster: Cluster) -> Workload:
    return cluster.workload("orchestrator")


def verifier(cluster: Cluster) -> Workload:
    return cluster.workload("verifier")


def drafter(cluster: Cluster) -> Workload:
    return cluster.workload("drafter")


def spec(cluster: Cluster, kind: str, name: str) -> Any:
    return cluster.get(kind, name)["spec"]


def budget(cluster: Cluster, name: str) -> Any:
    return spec(cluster, "PodDisruptionBudget", name)


def mount(cluster: Cluster, **volume: Any) -> None:
    verifier(cluster).pod["volumes"].append({"name": "x", **volume})


def shared_memory(cluster: Cluster) -> Any:
    [volume] = [v for v in drafter(cluster).pod["volumes"] if v["name"] == "shm"]
    return volume["emptyDir"]


def spread(cluster: Cluster) -> Any:
    return orchestrator(cluster).pod["topologySpreadConstraints"][0]


def config(cluster: Cluster, name: str) -> Any:
    return cluster.get("ConfigMap", name)["data"]


def policy(cluster: Cluster, name: str) -> Any:
    return spec(cluster, "NetworkPolicy", name)


def remove(cluster: Cluster, kind: str, name: str) -> None:
    cluster.manifests.remove(cluster.get(kind, name))


OF_DEVELOPMENT = [
    ("selectors", lambda c: verifier(c).labels.update({"app.kubernetes.io/component": "other"})),
    ("selectors", lambda c: spec(c, "Service", "redis").update(selector={"app": "none"})),
    ("service_ports", lambda c: spec(c, "Service", "drafter")["ports"][0].update(targetPort="x")),
    ("probes", lambda c: verifier(c).container["livenessProbe"]["grpc"].update(port=50062)),
    (
        "probes",
        lambda c: verifier(c).container["livenessProbe"]["grpc"].update(service="readiness"),
    ),
    ("probes", lambda c: drafter(c).container.pop("startupProbe")),
    (
        "probes",
        lambda c: c.workload("redis").container["livenessProbe"]["tcpSocket"].update(port="x"),
    ),
    ("disruption_budgets", lambda c: remove(c, "PodDisruptionBudget", "verifier")),
    ("disruption_budgets", lambda c: budget(c, "verifier").update(minAvailable=1)),
    ("disruption_budgets", lambda c: budget(c, "drafter")["selector"].update(matchLabels={})),
    (
        "disruption_budgets",
        lambda c: budget(c, "orchestrator").update(
            minAvailable=budget(c, "orchestrator").pop("maxUnavailable")
        ),
    ),
    ("disruption_budgets", lambda c: budget(c, "drafter").pop("unhealthyPodEvictionPolicy")),
    ("replicas", lambda c: drafter(c).spec.pop("replicas")),
    ("references", lambda c: remove(c, "Secret", "redis")),
    ("references", lambda c: remove(c, "ServiceAccount", "verifier")),
    ("references", lambda c: c.get("Secret", "redis")["data"].pop("url")),
    ("references", lambda c: mount(c, configMap={"name": "x"})),
    ("namespaces_and_labels", lambda c: c.get("Service", "redis")["metadata"].pop("namespace")),
    ("namespaces_and_labels", lambda c: verifier(c).labels.pop("app.kubernetes.io/part-of")),
    ("flows", lambda c: policy(c, "orchestrator")["egress"].pop()),
    ("flows", lambda c: policy(c, "drafter")["ingress"][0]["ports"][0].update(port=50052)),
    ("flows", lambda c: policy(c, "redis")["ingress"].clear()),
    ("flows", lambda c: policy(c, "paceline")["ingress"].clear()),
    ("flows", lambda c: policy(c, "dns")["egress"].clear()),
    ("walls", lambda c: remove(c, "NetworkPolicy", "default-deny")),
    ("walls", lambda c: policy(c, "verifier")["ingress"][0].pop("from")),
    ("walls", lambda c: policy(c, "orchestrator")["ingress"][0].pop("from")),
    ("walls", lambda c: policy(c, "paceline")["egress"].append({})),
    ("restricted", lambda c: verifier(c).pod.pop("enableServiceLinks")),
    ("restricted", lambda c: verifier(c).container["volumeMounts"][0].update(mountPath="/x")),
    ("restricted", lambda c: c.of("Namespace")[0]["metadata"]["labels"].clear()),
    ("resources", lambda c: orchestrator(c).container["resources"]["limits"].update(cpu="1")),
    ("resources", lambda c: verifier(c).container["resources"]["limits"].update(memory="9Gi")),
    ("resources", lambda c: verifier(c).container["resources"].pop("limits")),
    ("leaving", lambda c: config(c, "orchestrator-settings").update(PACELINE_GRACE="55")),
    ("leaving", lambda c: config(c, "verifier-settings").pop("PACELINE_GRACE")),
    ("leaving", lambda c: verifier(c).container.pop("lifecycle")),
    ("rolling", lambda c: verifier(c).spec["strategy"]["rollingUpdate"].update(maxSurge=1)),
    ("placement", lambda c: orchestrator(c).pod.pop("topologySpreadConstraints")),
    ("placement", lambda c: spread(c).update(whenUnsatisfiable="DoNotSchedule")),
    ("placement", lambda c: spread(c).pop("nodeTaintsPolicy")),
    ("placement", lambda c: verifier(c).pod["topologySpreadConstraints"].pop(0)),
    ("placement", lambda c: spread(c)["labelSelector"].update(matchLabels={"app": "none"})),
    ("devices", lambda c: config(c, "verifier-settings").update(PACELINE_DEVICE="cuda")),
    ("known", lambda c: config(c, "settings").update(PACELINE_TARGET="m")),
    ("known", lambda c: config(c, "settings").update(PACELINE_HEALTHPORT="1")),
    ("known", lambda c: config(c, "verifier-settings").update(PACELINE_DTYPE="float8")),
    ("known", lambda c: config(c, "verifier-settings").pop("PACELINE_TARGET")),
    ("known", lambda c: config(c, "settings").update(PACLINE_HOST="1")),
    ("known", lambda c: verifier(c).container["env"].pop(1)),
    ("ports", lambda c: config(c, "settings").update(PACELINE_HEALTH_PORT="50062")),
    ("ports", lambda c: config(c, "settings").pop("PACELINE_METRICS_HOST")),
    ("ports", lambda c: config(c, "verifier-settings").update(PACELINE_PORT="50053")),
    ("ports", lambda c: verifier(c).container["env"].pop(2)),
    ("ports", lambda c: drafter(c).container["env"].pop(0) and drafter(c).container["env"].pop()),
    ("traces", lambda c: remove(c, "Service", "otel-collector")),
    ("methods", lambda c: config(c, "orchestrator-settings").update(PACELINE_METHOD="graph")),
]
OF_PRODUCTION = [
    ("replicas", lambda c: drafter(c).spec.update(replicas=3)),
    ("replicas", lambda c: spec(c, "ScaledObject", "drafter")["scaleTargetRef"].update(name="x")),
    ("references", lambda c: remove(c, "PersistentVolumeClaim", "models")),
    ("references", lambda c: remove(c, "PriorityClass", "paceline-drafter")),
    ("references", lambda c: remove(c, "Certificate", "drafter-tls")),
    ("certificates", lambda c: remove(c, "Issuer", "link")),
    ("certificates", lambda c: remove(c, "Certificate", "client-ca")),
    ("certificates", lambda c: spec(c, "Certificate", "drafter-tls").update(dnsNames=["a"])),
    (
        "certificates",
        lambda c: spec(c, "Certificate", "verifier-tls")["issuerRef"].update(name="client"),
    ),
    (
        "certificates",
        lambda c: spec(c, "Certificate", "orchestrator-tls")["issuerRef"].update(name="link"),
    ),
    ("monitors", lambda c: drafter(c).container["ports"].pop(1)),
    ("monitors", lambda c: drafter(c).labels.pop("app.kubernetes.io/name")),
    ("devices", lambda c: verifier(c).pod.pop("tolerations")),
    ("devices", lambda c: verifier(c).container["resources"]["limits"].pop("nvidia.com/gpu")),
    ("devices", lambda c: c.get("PriorityClass", "paceline-drafter").update(value=100000)),
    ("devices", lambda c: orchestrator(c).pod.pop("priorityClassName")),
    ("engines", lambda c: verifier(c).container.update(image="registry/paceline-models:0.2.0")),
    ("engines", lambda c: config(c, "drafter-settings").pop("PACELINE_ENGINE")),
    ("engines", lambda c: verifier(c).container["volumeMounts"].clear()),
    ("engines", lambda c: shared_memory(c).update(medium="")),
    ("engines", lambda c: drafter(c).container["startupProbe"].update(failureThreshold=60)),
    ("known", lambda c: config(c, "verifier-settings").update(PACELINE_ENGINE="vLLM")),
]


def rank(cluster: Cluster) -> Workload:
    [found] = cluster.ranks
    return found


def group(cluster: Cluster) -> Any:
    return spec(cluster, "LeaderWorkerSet", "verifiers")


OF_SEVERAL_NODES = [
    ("ranks", lambda c: group(c)["leaderWorkerTemplate"].update(restartPolicy="None")),
    ("ranks", lambda c: group(c)["leaderWorkerTemplate"].update(size=4)),
    ("ranks", lambda c: config(c, "verifier-settings").update(PACELINE_TENSOR_PARALLEL="16")),
    ("ranks", lambda c: config(c, "verifier-settings").update(PACELINE_TENSOR_PARALLEL="9")),
    ("ranks", lambda c: rank(c).container.update(image="paceline-vllm:0.1.0")),
    ("ranks", lambda c: rank(c).container["resources"]["limits"].update({"nvidia.com/gpu": 2})),
    ("ranks", lambda c: rank(c).container["env"].pop()),
    ("ranks", lambda c: rank(c).container["env"][1].update(value="0")),
    ("ranks", lambda c: rank(c).container["env"][2].update(value="somewhere:50054")),
    ("ranks", lambda c: [w.pod["volumes"].pop() for w in (verifier(c), rank(c))]),
    ("ranks", lambda c: remove(c, "PodDisruptionBudget", "verifier-rank")),
    ("ranks", lambda c: remove(c, "NetworkPolicy", "ranks")),
    ("ranks", lambda c: policy(c, "ranks")["ingress"][0].pop("from")),
    ("ranks", lambda c: policy(c, "ranks")["egress"].clear()),
    ("ranks", lambda c: rank(c).labels.update({"app.kubernetes.io/name": "paceline"})),
    (
        "ranks",
        lambda c: c.get("Service", "verifier")["metadata"].update(name="verifiers"),
    ),
    ("known", lambda c: rank(c).container["env"][0].update(name="PACELINE_NODEZ")),
    ("resources", lambda c: rank(c).container["resources"].pop("limits")),
    ("references", lambda c: remove(c, "PersistentVolumeClaim", "models")),
    ("namespaces_and_labels", lambda c: rank(c).labels.pop("app.kubernetes.io/part-of")),
    ("replicas", lambda c: spec(c, "ScaledObject", "verifier")["scaleTargetRef"].update(name="x")),
    (
        "rolling",
        lambda c: group(c)["rolloutStrategy"]["rollingUpdateConfiguration"].update(maxSurge=1),
    ),
]
