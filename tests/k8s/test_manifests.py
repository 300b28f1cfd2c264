"""What the manifests promise together, in every overlay; and that each check can fail."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from services.runtime.telemetry import names
from tests.k8s import mutants, network, pods, prometheus_rule, ranks, settings, wiring
from tests.k8s.cluster import DOWNLOAD, K8S, OVERLAYS, render

CHECKS = {
    check.__name__: check
    for check in (
        wiring.selectors, wiring.service_ports, wiring.probes, wiring.disruption_budgets,
        wiring.replicas, wiring.references, wiring.namespaces_and_labels, wiring.certificates,
        wiring.monitors, network.flows, network.walls, pods.restricted, pods.resources,
        pods.leaving, pods.rolling, pods.placement, pods.devices, pods.engines, settings.known,
        settings.ports, settings.traces, settings.methods, ranks.ranks,
    )
}  # fmt: skip
SHORTEST_NOTICE, LONGEST_NOTICE = 15.0, 120.0
"""Seconds that a provider gives an ordinary pod before it takes the node: GKE's, and AWS's."""
OF_ANY_POD = ("selectors", "probes", "references", "restricted", "resources")


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_holds_together(overlay, check):
    assert list(CHECKS[check](render(overlay))) == []


@pytest.mark.parametrize("check", OF_ANY_POD)
def test_the_download_of_models_holds_together(check):
    assert list(CHECKS[check](render(DOWNLOAD))) == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_process_starts_with_the_protection_that_its_overlay_gives(overlay, tmp_path):
    assert list(settings.protected(render(overlay), tmp_path)) == []


def test_the_base_alone_is_refused_rather_than_open_to_everybody(tmp_path):
    cluster = render("overlays/kind-cpu")
    del cluster.get("ConfigMap", "settings")["data"]["PACELINE_INSECURE"]
    refused = [finding.partition(":")[0] for finding in settings.protected(cluster, tmp_path)]
    assert sorted(refused) == ["drafter", "orchestrator", "verifier"]


def test_mutual_tls_takes_back_what_allowed_plaintext(tmp_path):
    text = (K8S / "overlays/dev/kustomization.yaml").read_text()
    added = "components:\n  - ../../components/mtls"
    cluster = render(overlay_of(tmp_path, text.replace("components:", added)))
    assert cluster.get("ConfigMap", "settings")["data"]["PACELINE_INSECURE"] == "false"
    (files := tmp_path / "files").mkdir()
    assert list(settings.protected(cluster, files)) == []


def test_without_vllm_the_same_devices_run_our_own_engine(tmp_path):
    text = (K8S / "overlays/prod-gpu/kustomization.yaml").read_text()
    cluster = render(overlay_of(tmp_path, text.replace("  - ../../components/vllm\n", "")))
    assert {name: found for name, check in CHECKS.items() if (found := list(check(cluster)))} == {}
    assert "paceline-models:" in cluster.workload("verifier").container["image"]


@pytest.mark.parametrize("scaler", ["keda", "hpa"])
def test_an_autoscaler_counts_groups_where_verifiers_are_groups(scaler, tmp_path):
    text = (K8S / "overlays/prod-gpu/kustomization.yaml").read_text()
    text = text.replace(
        "components/keda\n", f"components/{scaler}\n  - ../../components/multi-node\n"
    )
    cluster = render(overlay_of(tmp_path, text))
    targets = [one["spec"]["scaleTargetRef"] for one in cluster.of(*wiring.AUTOSCALERS)]
    assert [one["name"] for one in targets if one.get("kind") == "LeaderWorkerSet"] == ["verifiers"]
    assert cluster.find("Deployment", "verifier") is None
    assert list(wiring.replicas(cluster)) == []


@pytest.mark.parametrize(
    ("component", "overlay"),
    [
        *((one, "kind-cpu") for one in ("mtls", "client-tokens", "model-cache", "otel", "spot")),
        ("spot", "prod-gpu"),
    ],
)
def test_a_component_may_be_put_on_top(component, overlay, tmp_path):
    cluster = render(on_top(tmp_path, f"overlays/{overlay}", component))
    assert {name: found for name, check in CHECKS.items() if (found := list(check(cluster)))} == {}


def test_workers_on_nodes_that_are_taken_back_leave_within_the_shortest_notice(tmp_path):
    cluster = render(on_top(tmp_path, "overlays/prod-gpu", "spot"))
    leaves = {w.name: _seconds_to_leave(cluster, w) for w in cluster.processes}
    assert max(leaves["verifier"], leaves["drafter"]) <= SHORTEST_NOTICE - 3
    barred = cluster.workload("orchestrator").pod["affinity"]["nodeAffinity"]
    [term] = barred["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    kept_off = {(one["key"], one["values"][0]) for one in term["matchExpressions"]}
    sought = cluster.workload("drafter").pod["affinity"]["nodeAffinity"]
    terms = sought["preferredDuringSchedulingIgnoredDuringExecution"]
    preferred = [one["preference"]["matchExpressions"][0] for one in terms]
    assert {one["operator"] for one in term["matchExpressions"]} == {"NotIn"}
    assert kept_off == {(one["key"], one["values"][0]) for one in preferred}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_process_leaves_within_the_longest_notice(overlay):
    cluster = render(overlay)
    assert max(_seconds_to_leave(cluster, w) for w in cluster.processes) <= LONGEST_NOTICE


def _seconds_to_leave(cluster, workload):
    sleep = workload.container["lifecycle"]["preStop"]["sleep"]["seconds"]
    return sleep + float(cluster.environment(workload)["PACELINE_GRACE"])


def test_what_the_readme_puts_in_an_overlay_on_top_wins(tmp_path):
    cluster = render(overlay_of(tmp_path, patch_in_readme("Put yours in")))
    environment = cluster.environment(cluster.workload("verifier"))
    assert environment["PACELINE_TARGET_STEP_MS"] == "150"
    assert environment["PACELINE_THREADS"] == "2"
    assert list(settings.known(cluster)) == []


def test_the_collector_looks_at_attributes_that_spans_have():
    pipeline = yaml.safe_load((K8S / "components/otel/pipeline.yaml").read_text())
    looked_at = [
        policy[policy["type"]]["key"]
        for policy in pipeline["processors"]["tail_sampling"]["policies"]
        if policy["type"].endswith("_attribute")
    ]
    assert len(looked_at) == 3
    assert set(looked_at) <= set(names.every_attribute())


@pytest.mark.parametrize("scaler", ["keda", "hpa"])
def test_an_autoscaler_fits_an_overlay_without_replicas(scaler, tmp_path):
    text = (K8S / "overlays/prod-gpu/kustomization.yaml").read_text()
    cluster = render(overlay_of(tmp_path, text.replace("components/keda", f"components/{scaler}")))
    assert len(cluster.of(*wiring.AUTOSCALERS)) == 3
    assert list(wiring.replicas(cluster)) == []


def test_clients_may_come_without_certificates_where_they_have_tokens(tmp_path):
    """The patch that k8s/README.md gives for that."""
    text = "resources: [../../overlays/prod-gpu]\n" + patch_in_readme("without certificates")
    cluster = render(overlay_of(tmp_path, text))
    given = {w.name: cluster.environment(w) for w in cluster.processes}
    assert given.keys() == {"orchestrator", "drafter", "verifier"}
    assert [n for n in given if "PACELINE_TLS_CA" not in given[n]] == ["orchestrator"]
    (files := tmp_path / "files").mkdir()
    assert list(settings.protected(cluster, files)) == []


def test_a_changed_setting_rolls_the_pods_that_read_it(tmp_path):
    text = (K8S / "overlays/kind-cpu/kustomization.yaml").read_text()
    changed = text.replace("PACELINE_INSECURE=true", "PACELINE_INSECURE=1")
    overlays = ("overlays/kind-cpu", overlay_of(tmp_path, changed))
    before, after = (render(one).workload("verifier").container["envFrom"] for one in overlays)
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_the_base_holds_no_secret_and_production_makes_none():
    assert render("base").of("Secret") == render("overlays/prod-gpu").of("Secret") == []


def test_what_the_readme_says_to_make_is_asked_for():
    asked = {
        reference[:2]
        for overlay in (*OVERLAYS, DOWNLOAD)
        for workload in render(overlay).workloads
        for reference in wiring._referred(workload)
    }
    assert wiring.documented().keys() <= asked


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_readme_names_every_setting_that_an_overlay_gives(overlay):
    named = set(re.findall(r"`([A-Z_]+)`", (K8S / "README.md").read_text()))
    cluster = render(overlay)
    given = {name for process in cluster.processes for name in cluster.environment(process)}
    assert {name for name in given if not name.startswith(("POD_", "NODE_", "LWS_"))} <= named


def test_the_operators_rules_are_the_rules_of_prometheus():
    rules = prometheus_rule.RULES.read_text()
    written = prometheus_rule.MANIFEST.read_text()
    assert prometheus_rule.groups(written) == prometheus_rule.groups(rules)
    assert written == prometheus_rule.manifest(rules)
    rendered = render("overlays/prod-gpu").get("PrometheusRule", "paceline")
    assert rendered["spec"]["groups"] == prometheus_rule.groups(rules)


def test_every_dashboard_reaches_grafana():
    marked = [
        config
        for config in render("overlays/prod-gpu").of("ConfigMap")
        if config["metadata"]["labels"].get("grafana_dashboard") == "1"
    ]
    shown = {file for config in marked for file in config["data"]}
    assert shown == {file.name for file in (K8S / "dashboards").glob("*.json")} != set()


def on_top(folder: Path, overlay: str, component: str) -> Path:
    """An overlay of a component on another overlay."""
    return overlay_of(
        folder,
        f"namespace: paceline\nresources: [../../{overlay}]\n"
        f"components: [../../components/{component}]\n",
    )


def overlay_of(folder: Path, text: str) -> Path:
    """The kustomization as an overlay of its own, in a copy of k8s/."""
    copied = folder / "k8s"
    shutil.copytree(K8S, copied)
    own = copied / "overlays" / "of-a-test"
    shutil.copytree(K8S / "overlays/prod-gpu", own)
    (own / "kustomization.yaml").write_text(text)
    return own


def patch_in_readme(words: str) -> str:
    """The YAML of the README that follows these words."""
    after = (K8S / "README.md").read_text().partition(words)[2]
    return "\n" + after.partition("```yaml\n")[2].partition("```")[0]


@pytest.mark.parametrize(
    ("overlay", "check", "break_it"),
    [
        *(("overlays/dev", *mutant) for mutant in mutants.OF_DEVELOPMENT),
        *(("overlays/prod-gpu", *mutant) for mutant in mutants.OF_PRODUCTION),
        *(("overlays/prod-multi-node", *mutant) for mutant in mutants.OF_SEVERAL_NODES),
    ],
)
def test_a_check_finds_what_is_broken(overlay, check, break_it):
    cluster = render(overlay)
    break_it(cluster)
    assert list(CHECKS[check](cluster))


def test_each_check_has_something_broken_to_find():
    broken = [*mutants.OF_DEVELOPMENT, *mutants.OF_PRODUCTION, *mutants.OF_SEVERAL_NODES]
    assert {check for check, _ in broken} == CHECKS.keys()
