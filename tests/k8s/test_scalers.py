"""The scalers that are shipped: what they ask Prometheus, and that both kinds ask the same."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from services.runtime.telemetry import names
from tests.k8s.cluster import render
from tests.monitoring.expressions import KEDA, SCALERS, TIERS, in_scalers
from tests.tools import tool

HPA = KEDA.with_name("hpa")
QUERIES = {str(expression): expression.promql for expression in in_scalers()}


def load(path: Path):
    return yaml.safe_load(path.read_text())


def behavior(scaler):
    return scaler["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]


def test_every_metric_that_the_page_speaks_of_is_exported():
    exported = {metric.prometheus for metric in names.every_metric()}
    page = (KEDA.parents[2] / "docs" / "scaling.md").read_text()
    for name in re.findall(r"paceline_\w+", page):
        assert re.sub("_(bucket|count)$", "", name) in exported


SERIES = {
    "streams": "paceline_streams_active{@}",
    "queue": "paceline_verify_queue_tokens{@}",
    "wanted": "paceline_drafters_wanted{@}",
    "starved": "paceline_verifier_starved_seconds_total{@}",
    "rests": 'paceline_rounds_fallback_total{@,reason="does_not_pay"}',
    "drafts": "paceline_drafts_total{@}",
    "verifiers": 'paceline_workers_connected{@,role="verifier"}',
    "drafters": 'paceline_workers_connected{@,role="drafter"}',
    "used": 'paceline_kv_used_tokens{@,role="verifier"}',
    "capacity": 'paceline_kv_capacity_tokens{@,role="verifier"}',
    "in_time": 'paceline_event_loop_lag_seconds_bucket{@,le="0.025"}',
    "late": 'paceline_event_loop_lag_seconds_bucket{@,le="+Inf"}',
}
"""`@` is where labels go."""


def counted(name: str, **values: str) -> list[dict[str, str]]:
    """A series of each of two orchestrators, a and b."""
    return [
        {"series": SERIES[name].replace("@", f'instance="{instance}"'), "values": value}
        for instance, value in values.items()
    ]


def both(name: str, values: str) -> list[dict[str, str]]:
    return counted(name, a=values, b=values)


def idle(**instead: list[dict[str, str]]) -> list[dict[str, str]]:
    """What two orchestrators show that never had a session nor a worker."""
    quiet = {name: both(name, "0+0x60") for name in SERIES}
    return [series for group in (quiet | instead).values() for series in group]


def loaded(**instead: list[dict[str, str]]) -> list[dict[str, str]]:
    """Two orchestrators, with two drafters and four verifiers that both of them know."""
    alike = {"rests": "0+1x60", "drafts": "0+100x60", "verifiers": "4+0x60", "drafters": "2+0x60"}
    alike |= {"used": "300+0x60", "capacity": "400+0x60", "late": "0+150x60"}
    apart = {"streams": ("30+0x60", "50+0x60"), "queue": ("100+0x60", "300+0x60")}
    # A quarter and a half of a second every second.
    apart |= {"wanted": ("20+0x60", "40+0x60"), "starved": ("0+3.75x60", "0+7.5x60")}
    busy = {name: both(name, values) for name, values in alike.items()}
    busy |= {name: counted(name, a=a, b=b) for name, (a, b) in apart.items()}
    return idle(**(busy | instead))


NOTHING = dict.fromkeys(QUERIES, 0.0)
BUSY = {
    "orchestrator streams": 80.0, "orchestrator lag": 50.0, "drafter wanted": 60.0,
    "drafter starved": 2.5, "verifier queue": 400.0, "verifier kv": 300.0,
}  # fmt: skip
A_WORKER = 'paceline_event_loop_lag_seconds_bucket{instance="w",le='
SITUATIONS = {
    "idle, and no worker there": (idle(), "15m", NOTHING),
    "orchestrators that have just begun": (idle(), "0s", NOTHING),
    "busy": (loaded(), "15m", BUSY),
    "late event loops of workers": (
        loaded(
            late=[
                *both("late", "0+150x60"),
                {"series": f'{A_WORKER}"0.025"}}', "values": "0+0x60"},
                {"series": f'{A_WORKER}"5"}}', "values": "0+0x60"},
                {"series": f'{A_WORKER}"+Inf"}}', "values": "0+900x60"},
            ]
        ),
        "15m",
        BUSY,
    ),
    "drafts that do not pay": (
        loaded(rests=both("rests", "0+201x60")),
        "15m",
        BUSY | {"drafter wanted": 0.0},
    ),
    "a drafter for each session": (
        loaded(wanted=both("wanted", "1+0x60")),
        "15m",
        BUSY | {"drafter wanted": 2.0, "drafter starved": 0.0},
    ),
    "drafters and verifiers away": (
        loaded(**{n: both(n, "0+0x60") for n in ("verifiers", "drafters", "used", "capacity")}),
        "15m",
        BUSY | {"drafter starved": 0.0, "verifier kv": 0.0},
    ),
    "orchestrators that nobody sees": ([], "15m", dict.fromkeys(QUERIES, None)),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_expression_says_what_it_should(situation, tmp_path):
    promtool = tool("promtool", "apt install prometheus")
    series, moment, expected = SITUATIONS[situation]
    asked = [
        {
            "expr": QUERIES[name],
            "eval_time": moment,
            "exp_samples": [] if value is None else [{"labels": "{}", "value": value}],
        }
        for name, value in expected.items()
    ]
    case = {"interval": "15s", "input_series": series, "promql_expr_test": asked}
    file = tmp_path / "case.yaml"
    file.write_text(json.dumps({"rule_files": [], "evaluation_interval": "15s", "tests": [case]}))
    done = subprocess.run(
        [promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- how they are shipped ---------------------------------------------------------------


@pytest.mark.parametrize("scaler", SCALERS.values(), ids=SCALERS)
def test_a_scaler_is_one_that_a_fallback_works_for(scaler):
    fallback = scaler["fallback"]
    assert fallback["replicas"] >= max(1, scaler["minReplicaCount"])
    assert fallback["behavior"] == "currentReplicasIfHigher"
    assert fallback["failureThreshold"] == 3
    for trigger in scaler["triggers"]:
        # Some versions of KEDA cut a target to a whole number in a fallback, and know no `Value`.
        assert trigger["metricType"] == "AverageValue"
        assert int(trigger["metadata"]["threshold"]) >= 1


@pytest.mark.parametrize("scaler", SCALERS.values(), ids=SCALERS)
def test_an_empty_answer_is_a_failure(scaler):
    for trigger in scaler["triggers"]:
        assert trigger["type"] == "prometheus"
        assert trigger["metadata"]["ignoreNullValues"] == "false"


@pytest.mark.parametrize("tier", TIERS)
def test_the_plain_autoscaler_does_what_the_scaled_object_does(tier):
    plain, scaler = load(HPA / f"{tier}.yaml")["spec"], SCALERS[tier]
    assert plain["scaleTargetRef"]["name"] == scaler["scaleTargetRef"]["name"] == tier
    assert plain["minReplicas"] == max(1, scaler["minReplicaCount"])
    assert plain["maxReplicas"] == scaler["maxReplicaCount"]
    for way in ("scaleUp", "scaleDown"):
        told, ours = plain["behavior"][way], behavior(scaler)[way]
        for part in ("stabilizationWindowSeconds", "policies"):
            assert told[part] == ours[part]
    targets = {one["name"]: float(one["metadata"]["threshold"]) for one in scaler["triggers"]}
    for metric in plain["metrics"]:
        if metric["type"] == "External":
            external = metric["external"]
            name = external["metric"]["name"].removeprefix(f"paceline_{tier}_")
            assert float(external["target"]["averageValue"]) == targets.pop(name)
    # CPU stands where the lag of event loops does.
    assert set(targets) == ({"lag"} if tier == "orchestrator" else set())


def test_the_adapter_asks_what_the_scaled_objects_ask():
    external = load(HPA / "adapter-values.yaml")["rules"]["external"]
    asked = {rule["name"]["as"]: rule["metricsQuery"] for rule in external}
    ours = {f"paceline_{name.replace(' ', '_')}": query for name, query in QUERIES.items()}
    del ours["paceline_orchestrator_lag"]
    assert asked == ours
    for rule in external:
        assert re.match(r"\w+", rule["seriesQuery"])[0] in rule["metricsQuery"]
        assert rule["resources"] == {"namespaced": False}


def test_one_place_says_where_prometheus_is():
    address = load(KEDA / "prometheus.yaml")["data"]["prometheus"]
    scaled = render("overlays/prod-gpu").of("ScaledObject")
    assert sorted(one["metadata"]["name"] for one in scaled) == sorted(TIERS)
    for one in scaled:
        for trigger in one["spec"]["triggers"]:
            assert trigger["metadata"]["serverAddress"] == address
