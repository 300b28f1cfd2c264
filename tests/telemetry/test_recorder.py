"""Spans of the real machine of a session, received by a real collector."""

import asyncio
from collections import Counter

import pytest

from orchestrator.steering import events
from services.contract.types import Role, VerifyMode
from services.runtime.telemetry import names, trace_ids
from tests.steering.world import Faults
from tests.telemetry.traced_world import TracedWorld

CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CLIENT_UNSAMPLED = CLIENT[:-2] + "00"


def received(receiver, telemetry):
    telemetry.shutdown()
    return receiver


@pytest.fixture
def traced(receiver, start):
    """Runs a session to its end: it, and what the collector has of it then."""

    def traced(*given, **options):
        telemetry = start()
        return TracedWorld(telemetry, *given, **options).finish(), received(receiver, telemetry)

    return traced


def only(spans):
    assert len(spans) == 1
    return spans[0]


def test_a_session_is_one_tree_whose_rounds_add_up_to_its_tokens(traced):
    world, got = traced(faults=Faults(accuracy=0.7), max_tokens=48)
    root = only(got.named("Generate"))
    rounds = got.named("spec_round")
    assert (root.parent_id, root.kind) == ("", "server")
    assert {round.parent_id for round in rounds} == {root.span_id}
    assert len(got.spans) == 1 + len(got.children(root)) + sum(
        len(got.children(round)) for round in rounds
    )
    emitted = sum(round.attributes[names.EMITTED_TOKENS] for round in rounds)
    assert emitted == len(world.emitted) == root.attributes[names.EMITTED_TOKENS] == 48
    assert root.attributes[names.OUTPUT_TOKENS] == 48
    assert root.attributes[names.FINISH_REASONS] == ["length"]
    assert root.attributes[names.SESSION_ID] == "s"
    assert root.attributes[names.RESPONSE_MODEL] == "tiny"
    assert root.resource["service.name"] == "paceline-orchestrator"


def test_a_round_says_what_its_record_says_and_has_its_parts(traced):
    world, got = traced(faults=Faults(accuracy=0.7))
    records = {record.round: record for record in world.records()}
    lasts = {commit.record.round for commit in world.commits}
    spans = {span.attributes[names.ROUND_INDEX]: span for span in got.named("spec_round")}
    assert spans.keys() == records.keys()
    for index, record in records.items():
        said = spans[index].attributes
        assert said[names.DRAFT_TOKENS] == record.draft_tokens
        assert said[names.ACCEPTED_TOKENS] == record.accepted_tokens
        drafted = record.draft_tokens
        share = record.accepted_tokens / drafted if drafted else None
        assert said.get(names.ACCEPTANCE_RATE) == share
        assert said[names.DRAFTER] == record.drafter
        assert (said[names.VERIFIER], said[names.OPENING]) == (record.verifier, record.epoch)
        assert spans[index].end - spans[index].start == pytest.approx(
            record.round_ms * 1e6, abs=2e3
        )
        parts = Counter(span.name for span in got.children(spans[index]))
        drafted = {"spec_draft": 1} if record.draft_tokens else {}
        stored = {"persist": 1} if index in lasts else {}
        assert parts == {"spec_verify": 1} | drafted | stored
        for draft in got.children(spans[index]):
            if draft.name == "spec_draft":
                assert draft.end <= spans[index].end
                assert draft.end - draft.start == pytest.approx(said[names.DRAFT_MS] * 1e6, abs=2e3)


@pytest.mark.parametrize("mode", list(VerifyMode))
def test_a_round_and_its_verifying_say_which_rule_was_used(traced, mode):
    _, got = traced(mode=mode, max_tokens=16)
    for round in got.named("spec_round"):
        verify = only([span for span in got.children(round) if span.name == "spec_verify"])
        assert round.attributes[names.MODE] == verify.attributes[names.MODE] == mode.name.lower()


def test_unusable_rows_of_q_are_on_their_round(traced):
    world, got = traced(2, mode=VerifyMode.BLOCK, max_tokens=48)
    bad = {record.round: record.bad_q_rows for record in world.records() if record.bad_q_rows}
    assert bad
    spans = {span.attributes[names.ROUND_INDEX]: span for span in got.named("spec_round")}
    said = {index: span.attributes.get(names.BAD_Q_ROWS) for index, span in spans.items()}
    assert {index: rows for index, rows in said.items() if rows is not None} == bad


def test_near_ties_are_on_their_round_and_all_of_them_on_the_session(traced):
    world, got = traced(max_tokens=48)
    near = {record.round: record.near_ties for record in world.records()}
    assert sum(near.values()) > 0
    spans = {span.attributes[names.ROUND_INDEX]: span for span in got.named("spec_round")}
    assert {index: span.attributes[names.NEAR_TIES] for index, span in spans.items()} == near
    assert only(got.named("Generate")).attributes[names.NEAR_TIES] == sum(near.values())


def test_rounds_where_chance_decides_have_no_near_ties(traced):
    _, got = traced(mode=VerifyMode.BLOCK, max_tokens=16)
    assert not any(names.NEAR_TIES in span.attributes for span in got.named("spec_round"))


def test_opening_a_worker_is_a_prefill_span(traced):
    _, got = traced()
    prefills = got.named("prefill")
    assert Counter(span.attributes[names.ROLE] for span in prefills) == {
        "verifier": 1,
        "drafter": 1,
    }
    assert {span.parent_id for span in prefills} == {only(got.named("Generate")).span_id}
    assert all(span.attributes[names.COMPLETED] for span in prefills)


def test_a_round_without_a_draft_says_why_if_the_session_speculates(traced):
    _, got = traced(max_tokens=32)
    plain = [s for s in got.named("spec_round") if not s.attributes[names.DRAFT_TOKENS]]
    assert plain
    assert all(span.attributes[names.FALLBACK] in names.FALLBACKS for span in plain)
    drafted = [s for s in got.named("spec_round") if s.attributes[names.DRAFT_TOKENS]]
    assert not any(names.FALLBACK in span.attributes for span in drafted)


def test_a_session_that_asks_for_no_drafts_does_not_fall_back(traced):
    _, got = traced(method="", max_tokens=16)
    assert not any(names.FALLBACK in span.attributes for span in got.named("spec_round"))


def test_a_session_without_a_drafter_says_so_and_when_it_has_one_again(receiver, start):
    telemetry = start()
    world = TracedWorld(telemetry, faults=Faults(), max_tokens=400).run(steps=100)
    lost = world.state.drafter.worker
    world.feed(events.WorkerLost(world.now, Role.DRAFTER, lost))
    world.finish()
    got = received(receiver, telemetry)
    migrate = only(got.named("migrate"))
    said = migrate.attributes
    assert migrate.parent_id == only(got.named("Generate")).span_id
    assert (said[names.ROLE], said[names.MIGRATE_CAUSE]) == ("drafter", "lost")
    assert said[names.FORMER_WORKER] == lost
    assert said[names.COMPLETED] == bool(said[names.WORKER])
    meanwhile = [s for s in got.named("spec_round") if migrate.start <= s.start < migrate.end]
    assert "no_drafter" in {span.attributes.get(names.FALLBACK) for span in meanwhile}


def test_a_lost_verifier_is_a_migration_to_another(receiver, start):
    telemetry = start()
    world = TracedWorld(telemetry, max_tokens=64).run(steps=50)
    world.feed(events.WorkerLost(world.now, Role.VERIFIER, world.state.verifier.worker, busy=True))
    world.finish()
    got = received(receiver, telemetry)
    migrate = only(got.named("migrate"))
    said = migrate.attributes
    assert (said[names.ROLE], said[names.MIGRATE_CAUSE]) == ("verifier", "full")
    assert said[names.COMPLETED]
    opened = [s for s in got.named("prefill") if s.attributes[names.ROLE] == "verifier"]
    assert migrate.end == max(span.end for span in opened)


def test_the_clients_trace_goes_on_in_the_session(traced):
    _, got = traced(traceparent=CLIENT)
    trace_id, span_id = CLIENT.split("-")[1:3]
    assert only(got.named("Generate")).place[0] == trace_id
    assert only(got.named("Generate")).parent_id == span_id
    assert {span.trace_id for span in got.spans} == {trace_id}


def test_a_suspended_session_ends_with_the_reason_and_leaves_nothing_open(receiver, start):
    telemetry = start()
    world = TracedWorld(telemetry, max_tokens=1000).run(steps=60)
    world.now = 2e6
    world.feed(events.Tick(world.now))
    assert world.performed(events.Suspend)
    world.recorder.end_generate("s")
    world.recorder.end_generate("s")
    got = received(receiver, telemetry)
    root = only(got.named("Generate"))
    assert root.attributes[names.ERROR_TYPE] == root.error == "deadline"
    assert len(got.named("spec_round")) == len(world.records())


@pytest.mark.parametrize(
    ("sampler", "parent"),
    [("always_off", CLIENT), ("parentbased_always_on", CLIENT_UNSAMPLED)],
)
def test_an_unsampled_session_makes_no_span_and_says_so_to_workers(
    receiver, start, monkeypatch, sampler, parent
):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    telemetry = start()
    world = TracedWorld(telemetry, traceparent=parent)
    session = world.recorder.traceparent("s")
    world.finish()
    assert received(receiver, telemetry).spans == []
    assert session.split("-")[1] == CLIENT.split("-")[1]
    assert not int(session[-2:], 16) & 1


def test_without_a_collector_there_is_no_trace_to_pass_on(start):
    world = TracedWorld(start())
    assert world.recorder.traceparent("s") == ""
    world.finish()


def test_a_session_the_recorder_never_met_is_ignored(start):
    world = TracedWorld(start())
    world.recorder.end_generate("s")
    world.finish()
    assert world.recorder.traceparent("s") == ""


def test_every_span_and_attribute_is_declared(traced):
    _, got = traced(faults=Faults(accuracy=0.6, lose_verifier=0.03))
    assert {span.name for span in got.spans} <= {span.name for span in names.every_span()}
    assert {key for span in got.spans for key in span.attributes} <= set(names.every_attribute())


async def test_log_lines_of_a_bound_task_carry_the_trace_ids(receiver, start):
    world = TracedWorld(start(), traceparent=CLIENT)

    async def serve():
        world.recorder.bind("s")
        return trace_ids()

    ids = await asyncio.create_task(serve())
    assert [ids["trace_id"], ids["span_id"]] == world.recorder.traceparent("s").split("-")[1:3]
    assert trace_ids() == {}


def test_every_round_is_one_span_whatever_happens(receiver, start):
    worlds = []
    for part in range(8):
        # Spans wait in a bounded queue, which one process could fill here before they are sent.
        telemetry = start()
        for seed in range(3 * part, 3 * part + 3):
            faults = Faults(accuracy=0.6, reorder=0.05, lose_drafter=0.02, lose_verifier=0.03)
            worlds.append(TracedWorld(telemetry, seed, faults, max_tokens=32).finish())
        telemetry.shutdown(timeout=30.0)
    rounds = receiver.named("spec_round")
    assert len(rounds) == sum(len(world.records()) for world in worlds)
    assert len(rounds) == len(receiver.named("spec_verify"))
    assert len(receiver.named("persist")) == sum(len(world.commits) for world in worlds)
    assert not any(names.COMPLETED in span.attributes for span in receiver.named("persist"))
    assert sum(span.attributes[names.EMITTED_TOKENS] for span in rounds) == 32 * len(worlds)
    assert all(span.start <= span.end for span in receiver.spans)


def test_what_was_on_its_way_to_the_store_at_the_end_is_marked(receiver, start):
    telemetry = start()
    world = TracedWorld(telemetry, faults=Faults(store_speed=0.0), max_tokens=400).run(steps=200)
    assert world.state.storing is not None
    world.recorder.end_generate("s", error="StoreError")
    got = received(receiver, telemetry)
    assert only(got.named("persist")).attributes[names.COMPLETED] is False
