"""What the overlays render to is what a real API server takes, keeps and schedules.

On the cluster of PACELINE_TEST_KUBECONFIG: k8s/README.md has the steps.
"""

import copy
from collections import Counter
from contextlib import contextmanager

import pytest

from tests.k8s.cluster import (
    CUSTOM_GROUPS,
    DOWNLOAD,
    K8S,
    OVERLAYS,
    Cluster,
    Manifest,
    name_of,
    render,
)  # fmt: skip
from tests.k8s.server import Server, connected, dropped, made_up, node, versions
from tests.k8s.test_manifests import overlay_of

FOLDERS = (*OVERLAYS, DOWNLOAD)
ZONES = ("a", "b", "c")
TIERS = ("orchestrator", "drafter", "verifier")


@pytest.fixture(scope="module")
def server():
    """The API server of the cluster that is named."""
    return connected()


def known(cluster: Cluster, server: Server) -> list[Manifest]:
    """What the server knows: all but kinds of operators that are not there."""
    served = server.served(cluster)
    unknown = [one for one in cluster.manifests if one not in served]
    groups = {one["apiVersion"].rpartition("/")[0] for one in unknown}
    assert [group for group in groups if not group.endswith(CUSTOM_GROUPS)] == []
    return served


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_server_takes_and_keeps_every_field(folder, server):
    served = known(render(folder), server)
    with server.holding(served):
        server.apply(served)
        stored = server.stored(served)
        pairs = zip(served, stored, strict=True)
        lost = {name_of(one): list(dropped(one, kept)) for one, kept in pairs}
        assert {name: paths for name, paths in lost.items() if paths} == {}
        server.apply(served)
        assert versions(server.stored(served)) == versions(stored)


def test_a_field_that_the_server_does_not_know_is_refused(server):
    served = known(render("overlays/kind-cpu"), server)
    verifier = next(one for one in served if name_of(one) == "Deployment verifier")
    verifier["spec"]["template"]["spec"]["topologySpreadConstraint"] = []
    with server.holding(served), pytest.raises(AssertionError, match="topologySpreadConstraint"):
        server.apply(served)


def test_what_a_server_leaves_out_is_noticed():
    kept = {"spec": {"a": 1, "b": [{"c": "1"}]}}
    assert list(dropped({"spec": {"a": 1, "b": [{"c": 1}], "off": False}}, kept)) == []
    assert list(dropped({"spec": {"a": 2, "d": 1}}, kept)) == [".spec.a: 2, stored 1", ".spec.d"]
    assert list(dropped({"spec": {"b": []}}, kept)) == [".spec.b[]"]


# --- where a scheduler and controllers run, and no node does -------------------------------


@contextmanager
def running(server: Server, folder, **replicas: int):
    """An overlay with so many pods of each Deployment from the start, all placed."""
    served = copy.deepcopy(known(render(folder), server))
    for one in served:
        if one["kind"] == "Deployment" and one["metadata"]["name"] in TIERS:
            one["spec"]["replicas"] = replicas.get(one["metadata"]["name"], 0)
    with server.holding(served):
        server.apply(served)
        server.until(lambda: len(placed(server)) == sum(replicas.values()))
        yield


def pods_of(server: Server, role: str = "") -> list[Manifest]:
    """Pods that are not leaving, of one role or of all three."""
    selector = f"app.kubernetes.io/component={role}" if role else "app.kubernetes.io/name=paceline"
    pods = server.items("pods", "--selector", selector)
    return [one for one in pods if "deletionTimestamp" not in one["metadata"]]


def placed(server: Server, role: str = "") -> list[str]:
    """The nodes of those that have one."""
    pods = [one["spec"] for one in pods_of(server, role)]
    return [one["nodeName"] for one in pods if "nodeName" in one]


def test_every_tier_is_spread_over_zones_and_nodes(server):
    nodes = [node(f"{zone}{number}", zone) for zone in ZONES for number in (1, 2)]
    tiers = {"orchestrator": 3, "verifier": 6, "drafter": 4}
    with made_up(server, nodes), running(server, "overlays/dev", **tiers):
        assert Counter(name[0] for name in placed(server, "orchestrator")) == Counter(ZONES)
        assert len(set(placed(server, "verifier"))) == 6
        # Where drafters are draws no verifier there.
        server.call("scale", "deployment", "verifier", "--replicas=9")
        server.until(lambda: len(placed(server, "verifier")) == 9)
        zones = Counter(name[0] for name in placed(server, "verifier"))
        assert set(zones.values()) == {3}
        assert len(set(placed(server, "drafter"))) == 4


def test_drafters_go_to_the_zone_of_the_verifiers(server):
    nodes = [node(f"{zone}{number}", zone) for zone in "ab" for number in (1, 2)]
    with made_up(server, nodes):
        server.call("cordon", "b1", "b2")
        with running(server, "overlays/dev", verifier=2):
            server.call("uncordon", "b1", "b2")
            server.call("scale", "deployment", "drafter", "--replicas=2")
            server.until(lambda: len(placed(server, "drafter")) == 2)
            assert sorted(placed(server, "drafter")) == ["a1", "a2"]


def test_a_drain_never_takes_the_last_orchestrator(server):
    nodes = [node("a1", "a"), node("b1", "b")]
    with made_up(server, nodes), running(server, "overlays/dev", orchestrator=2):
        first, second = (one["metadata"]["name"] for one in pods_of(server, "orchestrator"))
        well = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        for name in (first, second):
            server.patch("pod", name, well, "--subresource=status")
        budget = ("get", "pdb", "orchestrator", "-o", "jsonpath={.status.disruptionsAllowed}")
        server.until(lambda: server.call(*budget) == "1")
        assert server.evict(first) == ""
        assert "disruption budget" in server.evict(second)


def test_a_verifier_takes_the_device_of_a_drafter_and_never_the_other_way_round(server, tmp_path):
    text = (K8S / "overlays/prod-gpu/kustomization.yaml").read_text()
    text = text.replace("  - ../../components/model-cache\n", "")
    folder = overlay_of(tmp_path, text)
    with made_up(server, [node("a1", "a", devices=1)]), running(server, folder, drafter=1):
        server.call("scale", "deployment", "verifier", "--replicas=1")
        server.until(lambda: pods_of(server, "verifier") and _ousted(server))
        server.until(lambda: _settled(server) and placed(server, "verifier") == ["a1"])
        server.until(lambda: any(map(_refused, pods_of(server, "drafter"))))
        assert placed(server, "drafter") == []


def _ousted(server: Server) -> bool:
    """Whether a drafter is told to leave, for another pod."""
    selector = "app.kubernetes.io/component=drafter"
    conditions = [
        condition
        for one in server.items("pods", "--selector", selector)
        for condition in one["status"].get("conditions", ())
    ]
    return any(one.get("reason") == "PreemptionByScheduler" for one in conditions)


def _settled(server: Server) -> bool:
    """Whether all that leave have left; no kubelet lets them."""
    leaving = [o for o in server.items("pods") if "deletionTimestamp" in o["metadata"]]
    for one in leaving:
        server.call("delete", "pod", one["metadata"]["name"], "--grace-period=0", "--force")
    return not leaving


def _refused(pod: Manifest) -> bool:
    return any(one.get("reason") == "Unschedulable" for one in pod["status"].get("conditions", ()))
