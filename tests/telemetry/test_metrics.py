"""What `/metrics` says over HTTP agrees with what happened."""

import asyncio
import time
from collections import Counter

import pytest

from orchestrator.recorder import watch_memory
from orchestrator.steering.events import Start
from orchestrator.steering.rounds import SuspendReason
from services.contract import errors
from services.contract.types import Progress, Role, VerifyMode
from services.drafter import registry
from services.runtime.step_records import StepEntry, StepRecord
from services.runtime.telemetry import StepTracer, names
from services.runtime.telemetry.loop_lag import MOST_MISSED, lags
from services.runtime.telemetry.names import MetricKind
from tests.steering.world import Faults
from tests.telemetry.scrape import scrape
from tests.telemetry.traced_world import TracedWorld

KINDS = {
    MetricKind.COUNTER: "counter",
    MetricKind.GAUGE: "gauge",
    MetricKind.HISTOGRAM: "histogram",
}


@pytest.fixture
def run(telemetry):
    faults = Faults(accuracy=0.8, lose_verifier=0.02, lose_drafter=0.01, verifier_speed=0.1)
    world = TracedWorld(telemetry, 3, faults, max_tokens=128).finish()
    # The run is worth counting: something accepted, something rejected, something plain.
    rates = {record.accepted_tokens / (record.draft_tokens or 9) for record in world.records()}
    assert {0.0, 1.0} < rates
    assert not all(record.draft_tokens for record in world.records())
    return world, scrape(telemetry)


def test_counters_agree_with_the_run(run):
    world, page = run
    done = world.records()
    drafts = [record for record in done if record.draft_tokens]
    assert page.value("paceline_emitted_tokens_total") == 128 == len(world.emitted)
    for prefix in ("paceline_drafts", "spec_decode_num_drafts"):
        assert page.value(f"{prefix}_total") == len(drafts) > 0
    for prefix in ("paceline_draft_tokens", "spec_decode_num_draft_tokens"):
        assert page.value(f"{prefix}_total") == sum(record.draft_tokens for record in done)
    accepted = sum(record.accepted_tokens for record in done)
    for prefix in ("paceline_accepted_tokens", "spec_decode_num_accepted_tokens"):
        assert page.value(f"{prefix}_total") == accepted > 0
    for prefix, count in (("draft", "drafted"), ("accepted", "accepted")):
        name = f"paceline_{prefix}_tokens_per_source_total"
        told = sum(getattr(one, count) for record in done for one in record.sources)
        assert (
            page.value(name, source="model")
            == told
            == page.value(f"paceline_{prefix}_tokens_total")
        )
        assert page.value(name, source="laws") == 0
    assert page.value("paceline_store_commit_duration_seconds_count") == len(world.commits)


def test_rounds_without_a_draft_are_counted_by_their_reason(run):
    world, page = run
    plain = [record for record in world.records() if not record.draft_tokens]
    by_reason = {
        reason: page.value("paceline_rounds_fallback_total", reason=reason)
        for reason in names.FALLBACKS
    }
    assert sum(by_reason.values()) == len(plain) > 0
    assert by_reason["opening"] > 0


def test_a_session_that_ends_with_an_error_is_counted_by_its_name(telemetry):
    TracedWorld(telemetry, max_tokens=1000).run(steps=30).recorder.end_generate("s", error="Fenced")
    assert scrape(telemetry).value("paceline_session_errors_total", type="Fenced") == 1


def test_what_may_go_wrong_is_there_from_the_start_so_that_its_first_time_has_a_rate(telemetry):
    TracedWorld(telemetry)
    page = scrape(telemetry)
    for failure in names.FAILURES:
        assert page.value("paceline_session_errors_total", type=failure) == 0
    for finish in names.FINISHES:
        assert page.value("gen_ai_server_request_duration_seconds_count", finish_reason=finish) == 0
    assert page.value("paceline_fenced_writes_total") == 0


def test_every_way_in_which_a_session_can_fail_is_known_by_name():
    suspended = {reason.name.lower() for reason in SuspendReason}
    raised = {failure for failure in names.FAILURES if failure[0].isupper()}
    assert suspended == names.FAILURES.keys() - raised
    assert all(issubclass(getattr(errors, name), errors.PacelineError) for name in raised)


def test_writes_that_are_fenced_are_counted(telemetry):
    TracedWorld(telemetry).recorder.fenced_write()
    assert scrape(telemetry).value("paceline_fenced_writes_total") == 1


def test_bad_rows_of_q_are_counted(telemetry):
    world = TracedWorld(telemetry, 2, mode=VerifyMode.BLOCK, max_tokens=64).finish()
    counted = scrape(telemetry).value("paceline_draft_bad_q_rows_total")
    assert counted == sum(record.bad_q_rows for record in world.records()) > 0


def test_every_round_is_counted_under_one_outcome(run):
    world, page = run
    by_outcome = {
        outcome: page.value("paceline_rounds_total", outcome=outcome) for outcome in names.OUTCOMES
    }
    assert sum(by_outcome.values()) == len(world.records())
    assert by_outcome["plain"] == sum(not record.draft_tokens for record in world.records())


def test_accepted_tokens_are_counted_by_position(run):
    world, page = run
    expected = Counter(
        position for record in world.records() for position in range(record.accepted_tokens)
    )
    for position in range(32):
        label = str(position)
        assert page.value("paceline_accepted_tokens_per_pos_total", pos=label) == expected[position]
        assert (
            page.value("spec_decode_num_accepted_tokens_per_pos_total", position=label)
            == expected[position]
        )


def test_histograms_count_the_rounds(run):
    world, page = run
    done = world.records()
    seconds = sum(record.round_ms for record in done) / 1e3
    assert page.value("paceline_round_duration_seconds_count") == len(done)
    assert page.value("paceline_round_duration_seconds_sum") == pytest.approx(seconds)
    assert page.value("paceline_round_accepted_tokens_count") == sum(
        bool(record.draft_tokens) for record in done
    )
    assert page.value("paceline_round_accepted_tokens_bucket", le="0.0") == sum(
        record.draft_tokens > 0 and record.accepted_tokens == 0 for record in done
    )
    assert page.value("gen_ai_server_time_to_first_token_seconds_count") == 1
    assert page.value("gen_ai_server_time_per_output_token_seconds_count") == 1
    assert page.value("gen_ai_server_request_duration_seconds_count", finish_reason="length") == 1


def test_a_finished_session_is_one_value_of_acceptance_and_of_block_efficiency(run):
    world, page = run
    done = world.records()
    drafted = sum(record.draft_tokens for record in done)
    accepted = sum(record.accepted_tokens for record in done)
    config = world.state.config
    labels = {"method": config.method, "mode": config.mode.name.lower()}
    for name, value in (
        ("acceptance_rate", accepted / drafted),
        ("block_efficiency", len(world.emitted) / len(done)),
    ):
        assert page.value(f"paceline_request_{name}_count", **labels) == 1
        assert page.value(f"paceline_request_{name}_sum", **labels) == pytest.approx(value)


@pytest.mark.parametrize(
    ("options", "label"),
    [
        ({"method": "model,ngram"}, "several"),
        ({"method": "of-my-own"}, "other"),
        ({"method": ""}, None),
        ({"max_tokens": 1000}, None),
    ],
)
def test_sessions_without_drafts_or_an_end_are_no_value_and_odd_methods_are_taken_together(
    telemetry, options, label
):
    world = TracedWorld(telemetry, **{"max_tokens": 32, **options})
    if options.get("max_tokens"):
        world.run(steps=60)
    else:
        world.finish()
    page = scrape(telemetry)
    mode = world.state.config.mode.name.lower()
    counts = {
        method: page.value("paceline_request_acceptance_rate_count", method=method, mode=mode)
        for method in names.METHODS
    }
    assert {method for method, count in counts.items() if count} == {label} - {None}


def test_methods_and_modes_are_those_that_there_are():
    assert names.METHODS[:-2] == tuple(sorted(registry.METHODS, key=names.METHODS.index))
    assert tuple(mode.name.lower() for mode in VerifyMode) == names.MODES


def test_a_session_that_opens_again_elsewhere_has_migrated(run):
    world, page = run
    opened = [action.role for action in world.performed(Start)]
    assert page.value("paceline_session_migrations_total", role="verifier") > 0
    for role in Role:
        moves = page.value("paceline_session_migrations_total", role=role.value)
        assert moves == opened.count(role) - 1


def test_sessions_are_gauged_while_they_live(telemetry):
    world = TracedWorld(telemetry, method="", max_tokens=8).run(steps=20)
    page = scrape(telemetry)
    assert page.value("paceline_sessions_active", role="orchestrator") == 1
    assert page.value("paceline_sessions_without_speculation") == 1
    world.recorder.end_generate("s")
    page = scrape(telemetry)
    assert page.value("paceline_sessions_active", role="orchestrator") == 0
    assert page.value("paceline_sessions_without_speculation") == 0


def test_a_worker_shows_its_steps_and_its_load(start):
    telemetry = start("verifier", metrics_port=0)
    tracer = StepTracer(telemetry)
    tracer.watch({"verifier": lambda: Progress(9, 3, 17, 100, 4096, 12.0)})
    members = (StepEntry("a", "verify", 4, queue_ms=3.0), StepEntry("b", "prefill", 64))
    tracer.on_step("verifier")(StepRecord(0, 20_000_000, members))
    tracer.close()
    page = scrape(telemetry)
    assert page.value("paceline_step_duration_seconds_sum", role="verifier") == 0.02
    assert page.value("paceline_step_batch_size_sum", role="verifier") == 2
    kind = {"role": "verifier", "kind": "verify"}
    assert page.value("paceline_step_queue_wait_seconds_sum") == pytest.approx(0.003)
    assert page.value("paceline_step_queue_wait_seconds_count") == 1
    assert page.value("paceline_step_tokens_total", **kind) == 4
    assert page.value("paceline_sessions_active", role="verifier") == 3
    assert page.value("paceline_queue_tokens", role="verifier") == 17
    assert page.value("paceline_kv_tokens_used") == 100
    assert page.value("paceline_kv_tokens_capacity") == 4096


def test_a_drafter_counts_what_it_copied_of_prompts(start):
    telemetry = start("drafter", metrics_port=0)
    tracer = StepTracer(telemetry)
    tracer.watch({"drafter": lambda: Progress(copied_tokens=117)})
    tracer.close()
    assert scrape(telemetry).value("paceline_draft_prompt_copied_total") == 117


@pytest.mark.parametrize(
    ("role", "kinds"),
    [("verifier", {"prefill", "verify"}), ("drafter", {"prefill", "draft"})],
)
def test_a_worker_shows_every_kind_of_step_before_its_first(start, role, kinds):
    telemetry = start(role, metrics_port=0)
    tracer = StepTracer(telemetry)
    tracer.on_step(role)
    page = scrape(telemetry)
    assert page.value("paceline_step_duration_seconds_count", role=role) == 0
    assert page.value("paceline_step_batch_size_count", role=role) == 0
    for kind in kinds:
        assert page.value("paceline_step_tokens_total", role=role, kind=kind) == 0
    tracer.close()


def test_near_ties_are_counted_among_the_tokens_that_a_model_chose(start):
    telemetry = start("verifier", metrics_port=0)
    tracer = StepTracer(telemetry)
    tell = tracer.on_choices("tiny", "bfloat16")
    tell("greedy", 5, 2)
    tell("greedy", 3, 0)
    page = scrape(telemetry)
    tracer.close()
    of = {"model": "tiny", "dtype": "bfloat16"}
    for mode, chosen, near in (("greedy", 8, 2), ("coupled", 0, 0)):
        assert page.value("paceline_chosen_tokens_total", mode=mode, **of) == chosen
        assert page.value("paceline_near_ties_total", mode=mode, **of) == near
    said = {s.labels["mode"] for s in page.families["paceline_near_ties"].samples}
    assert said == {"greedy", "coupled"}


def test_every_metric_on_the_page_is_declared_with_its_kind_and_labels(run, start):
    _, page = run
    worker = start("drafter", metrics_port=0)
    tracer = StepTracer(worker)
    tracer.watch({"drafter": Progress})
    tracer.on_preempt()()
    tracer.on_choices("tiny", "float32")
    tracer.on_step("drafter")(StepRecord(0, 1, (StepEntry("a", "draft", 4),)))
    tracer.on_step("verifier")
    tracer.close()
    orchestrator = start(metrics_port=0)
    orchestrator.gauge(names.STREAMS, lambda: [(3, ())])
    orchestrator.gauge(names.STORE_AWAY, lambda: [(0.0, ())])
    orchestrator.gauge(names.CONNECTED_WORKERS, lambda: [(1, ("verifier",))])
    watch_memory(orchestrator, lambda role: [])
    TracedWorld(orchestrator).recorder.end_generate("s", error="Fenced")
    families = page.families | scrape(worker).families | scrape(orchestrator).families

    declared = {metric.prometheus.removesuffix("_total"): metric for metric in names.every_metric()}
    assert families.keys() - {"target_info"} == declared.keys()
    for name, metric in declared.items():
        assert families[name].type == KINDS[metric.kind]
        assert families[name].documentation == metric.help
        for sample in families[name].samples:
            assert sample.labels.keys() - {"le"} == set(metric.labels)


def test_a_histogram_has_the_buckets_that_are_declared(run):
    _, page = run
    samples = page.families["paceline_round_duration_seconds"].samples
    bounds = {float(sample.labels["le"]) for sample in samples if "le" in sample.labels}
    assert bounds == {*names.ROUND_SECONDS.buckets, float("inf")}


def test_metrics_leave_by_otlp_too(receiver, start):
    telemetry = start()
    TracedWorld(telemetry).finish()
    assert receiver.wait_for(lambda got: names.EMITTED.name in got.metrics)
    telemetry.shutdown()
    assert names.ROUND_SECONDS.name in receiver.metrics


async def test_how_late_the_event_loop_is_is_measured(telemetry):
    lag = StepTracer(telemetry).loop_lag
    lag.start()
    await asyncio.sleep(0.15)
    # The loop stands still, as it would under a starved process.
    time.sleep(0.3)  # noqa: ASYNC251
    await asyncio.sleep(0.15)
    lag.stop()
    lag.stop()
    page = scrape(telemetry)
    assert page.value("paceline_event_loop_lag_seconds_count") >= 2
    late = page.value("paceline_event_loop_lag_seconds_sum")
    assert late > 0.15
    await asyncio.sleep(0.2)
    assert scrape(telemetry).value("paceline_event_loop_lag_seconds_sum") == late


def test_a_loop_that_stands_still_counts_for_every_call_that_was_due_meanwhile():
    assert lags(0.25) == pytest.approx([0.25, 0.15, 0.05])
    assert lags(-0.001) == [0.0]
    assert len(lags(1e6)) == MOST_MISSED + 1
