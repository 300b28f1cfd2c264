"""A worker's steps as spans that join the traces of the rounds they served."""

import pytest

from services.runtime.step_records import Dropped, StepEntry, StepRecord
from services.runtime.telemetry import StepTracer, names
from services.runtime.telemetry.children import verifying_of
from services.runtime.telemetry.propagation import parent_context, span_context
from tests.telemetry.scrape import scrape
from tests.telemetry.traced_world import TracedWorld

TRACE = "0af7651916cd43dd8448eb211c80319c"
SAMPLED = [f"00-{TRACE}-{span:016x}-01" for span in (1, 2)]
UNSAMPLED = f"00-{TRACE}-{3:016x}-00"
START, END = 1_700_000_000_000_000_000, 1_700_000_000_020_000_000


def entries():
    return (
        StepEntry("a", "verify", 4, SAMPLED[0], 1.5),
        StepEntry("b", "prefill", 100, SAMPLED[1], 0.0),
        StepEntry("c", "verify", 2, UNSAMPLED, 0.5),
        StepEntry("d", "verify", 0, "", 0.5),
    )


def trace(telemetry, role, *records):
    tracer = StepTracer(telemetry)
    for record in records:
        tracer.on_step(role)(record)
    tracer.close()
    telemetry.shutdown()


def test_a_step_is_one_span_linked_to_the_rounds_it_served(receiver, start):
    trace(start("verifier"), "verifier", StepRecord(START, END, entries()))

    (batch,) = receiver.named("verify.batch")
    assert batch.parent_id == ""
    assert batch.links == tuple((TRACE, f"{span:016x}") for span in (1, 2))
    assert (batch.start, batch.end) == (START, END)
    assert batch.attributes == {names.STEP_SIZE: 4, names.STEP_TOKENS: 106}


def test_each_sampled_member_has_a_child_span_in_its_own_trace(receiver, start):
    trace(start("verifier"), "verifier", StepRecord(START, END, entries()))

    (batch,) = receiver.named("verify.batch")
    (verify,) = receiver.named("verify")
    (prefill,) = receiver.named("prefill")
    assert (verify.trace_id, verify.parent_id) == (TRACE, f"{1:016x}")
    assert (prefill.trace_id, prefill.parent_id) == (TRACE, f"{2:016x}")
    assert verify.links == prefill.links == (batch.place,)
    assert (verify.start, verify.end) == (START, END)
    assert verify.attributes[names.STEP_QUEUE_MS] == 1.5
    assert verify.resource[names.ROLE] == "verifier"
    assert len(receiver.spans) == 3


def test_a_step_of_a_session_hangs_at_the_place_that_its_position_says(receiver, start):
    record = StepRecord(START, END, (StepEntry("a", "verify", 4, SAMPLED[0], 1.5, 2, 30),))
    trace(start("verifier"), "verifier", record)

    place = verifying_of(span_context(parent_context(SAMPLED[0])), 2, 30)
    (verify,) = receiver.named("verify")
    assert (verify.trace_id, verify.parent_id) == (TRACE, f"{place.span_id:016x}")


@pytest.mark.parametrize("sampler", ["parentbased_always_off", "parentbased_traceidratio"])
def test_a_batch_is_sampled_with_its_members_and_not_by_chance_again(
    receiver, start, monkeypatch, sampler
):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    sampled = StepRecord(START, END, (StepEntry("a", "draft", 1, traceparent=SAMPLED[0]),))
    unsampled = StepRecord(START, END, (StepEntry("c", "draft", 1, traceparent=UNSAMPLED),))
    trace(start("drafter"), "drafter", sampled, unsampled)

    assert sorted(span.name for span in receiver.spans) == ["draft", "draft.batch"]


def test_the_verifiers_spans_hang_below_the_orchestrators(receiver, start):
    telemetry, worker = start(), start("verifier")
    tracer = StepTracer(worker)
    TracedWorld(telemetry, verifier=tracer.on_step("verifier")).finish()
    tracer.close()
    worker.shutdown()
    telemetry.shutdown()

    rounds = receiver.named("spec_round")
    assert rounds
    for round in rounds:
        (verify,) = [s for s in receiver.children(round) if s.name == "spec_verify"]
        (worked,) = receiver.children(verify)
        assert worked.name == "verify"
        assert worked.resource["service.name"] == "paceline-verifier"
        assert worked.attributes[names.STEP_TOKENS] == round.attributes[names.DRAFT_TOKENS]
        (batch,) = [s for s in receiver.named("verify.batch") if s.place in worked.links]
        assert batch.links == (verify.place,)


def test_a_malformed_traceparent_costs_nothing_but_the_span(receiver, start):
    entry = StepEntry("a", "verify", 1, "00-zz-yy-01")
    trace(start("verifier"), "verifier", StepRecord(START, END, (entry,)))
    assert receiver.named("verify.batch") == []


def test_steps_that_come_too_fast_are_counted_and_dropped(start):
    from services.runtime.telemetry import steps

    telemetry = start("drafter", metrics_port=0)
    tracer = StepTracer(telemetry)
    tracer.close()  # nobody takes records any more
    for _ in range(steps._MOST_WAITING + 3):
        tracer.on_step("drafter")(StepRecord(START, END))
    assert scrape(telemetry).value("paceline_step_untraced_total") == 3


def test_who_stood_out_and_which_drafts_were_dropped_are_counted_by_the_reason(start):
    telemetry = start("verifier", metrics_port=0)
    tracer = StepTracer(telemetry)
    take = tracer.on_step("verifier")
    take(StepRecord(START, END, (), (1, 2, 3, 4, 5, 6, 7), {Dropped.LATE: 4}))
    take(StepRecord(START, END, (), (), {Dropped.LATE: 1, Dropped.ENDED: 2}))
    tracer.close()
    page = scrape(telemetry)
    out = [page.value("paceline_step_stood_out_total", reason=one) for one in names.WAITS]
    assert out == [1, 2, 3, 4, 5, 6, 7]
    assert [*names.DROPS] == [*Dropped]
    dropped = {
        one: page.value("paceline_draft_tokens_dropped_total", reason=one) for one in Dropped
    }
    assert dropped == dict.fromkeys(Dropped, 0) | {Dropped.LATE: 5, Dropped.ENDED: 2}
