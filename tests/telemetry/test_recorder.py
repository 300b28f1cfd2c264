"""Spans of the real round machine, received by a real collector."""

import asyncio
from collections import Counter

import pytest

from orchestrator.core import events
from orchestrator.recorder import Recorder
from services.contract.types import Role, VerifyMode
from services.runtime.telemetry import names, trace_ids
from tests.core.test_rounds_small_trees import follows
from tests.core.test_rounds_taken_drafts import World as Together
from tests.core.world import Faults
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
    records = {
        action.commit.record.round: action.commit.record
        for action in world.performed(events.Persist)
    }
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
        assert parts == {"spec_verify": 1, "persist": 1} | drafted
        for draft in got.children(spans[index]):
            if draft.name == "spec_draft":
                assert draft.end == spans[index].start
                assert draft.end - draft.start == pytest.approx(said[names.DRAFT_MS] * 1e6, abs=2e3)


def test_a_round_and_its_verifying_say_which_rule_was_used(receiver, start):
    telemetry = start()
    world = TracedWorld(telemetry, mode=VerifyMode.STANDARD, max_tokens=48).run(steps=60)
    # The verifier's word counts, not what the session was opened for.
    for verifier in world.verifiers.values():
        verifier.mode = VerifyMode.BLOCK
    world.finish()
    got = received(receiver, telemetry)
    said = {
        action.commit.record.round: action.commit.record.mode.name.lower()
        for action in world.performed(events.Persist)
    }
    assert {*said.values()} == {"standard", "block"}
    for round in got.named("spec_round"):
        rule = said[round.attributes[names.ROUND_INDEX]]
        verify = only([span for span in got.children(round) if span.name == "spec_verify"])
        assert round.attributes[names.MODE] == verify.attributes[names.MODE] == rule


def test_unusable_rows_of_q_are_on_their_round(traced):
    world, got = traced(2, mode=VerifyMode.BLOCK, max_tokens=48)
    records = [action.commit.record for action in world.performed(events.Persist)]
    bad = {record.round: record.bad_q_rows for record in records if record.bad_q_rows}
    assert bad
    spans = {span.attributes[names.ROUND_INDEX]: span for span in got.named("spec_round")}
    said = {index: span.attributes.get(names.BAD_Q_ROWS) for index, span in spans.items()}
    assert {index: rows for index, rows in said.items() if rows is not None} == bad


def test_near_ties_are_on_their_round_and_all_of_them_on_the_session(traced):
    world, got = traced(max_tokens=48)
    records = [action.commit.record for action in world.performed(events.Persist)]
    near = {record.round: record.near_ties for record in records}
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
    world = TracedWorld(telemetry, max_tokens=400).run(steps=100)
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


def test_drafts_beyond_a_rejection_are_linked_to_the_round_that_rejected(traced):
    world, got = traced(faults=Faults(accuracy=0.6), max_in_flight=3, max_tokens=128)
    rounds = {span.place: span for span in got.named("spec_round")}
    rejecting = {"partial", "rejected_all", "accepted_all", "plain"}
    thrown = [s for s in got.named("spec_draft") if names.DISCARDED_DRAFT in s.attributes]
    assert sum(span.attributes[names.DRAFT_TOKENS] for span in thrown) == world.unsent > 0
    root = only(got.named("Generate"))
    for span in thrown:
        assert span.parent_id == root.span_id
        culprit = rounds[only(span.links)]
        assert culprit.attributes[names.ROUND_OUTCOME] in rejecting
        assert culprit.end == span.end
    discarded = [
        span for span in rounds.values() if span.attributes[names.ROUND_OUTCOME] == "discarded"
    ]
    assert discarded
    for span in discarded:
        culprit = rounds[only(span.links)]
        assert culprit.attributes[names.ROUND_INDEX] < span.attributes[names.ROUND_INDEX]
        assert span.start <= culprit.end <= span.end


def test_every_block_ends_as_one_round_span_whatever_happens(receiver, start):
    worlds = []
    for part in range(8):
        # Spans wait in a bounded queue, which one process could fill here before they are sent.
        telemetry = start()
        for seed in range(3 * part, 3 * part + 3):
            faults = Faults(accuracy=0.6, reorder=0.3, lose_drafter=0.02, lose_verifier=0.03)
            worlds.append(TracedWorld(telemetry, seed, faults, max_in_flight=3, max_tokens=32))
            worlds[-1].finish()
        telemetry.shutdown(timeout=30.0)
    got = receiver

    rounds = got.named("spec_round")
    outcomes = Counter(span.attributes[names.ROUND_OUTCOME] for span in rounds)
    sent = sum(len(world.performed(events.SendVerify)) for world in worlds)
    verdicts = sum(len(world.performed(events.Persist)) for world in worlds)
    discarded = sum(len(world.performed(events.Discarded)) for world in worlds)
    assert outcomes.total() == sent == len(got.named("spec_verify"))
    assert outcomes["discarded"] == discarded > 0
    assert outcomes["abandoned"] == sent - verdicts - discarded > 0
    assert outcomes.keys() == names.OUTCOMES.keys()
    assert len(got.named("persist")) == verdicts
    assert not any(names.COMPLETED in span.attributes for span in got.named("persist"))
    assert sum(span.attributes.get(names.EMITTED_TOKENS, 0) for span in rounds) == 32 * len(worlds)
    assert all(span.start <= span.end for span in got.spans)


def test_the_clients_trace_goes_on_in_the_session(traced):
    _, got = traced(traceparent=CLIENT)
    trace_id, span_id = CLIENT.split("-")[1:3]
    assert only(got.named("Generate")).place[0] == trace_id
    assert only(got.named("Generate")).parent_id == span_id
    assert {span.trace_id for span in got.spans} == {trace_id}


def test_a_round_travels_under_its_verify_span(traced):
    world, got = traced()
    for round in got.named("spec_round"):
        verify = only([span for span in got.children(round) if span.name == "spec_verify"])
        parent = world.parents[round.attributes[names.ROUND_INDEX]]
        assert parent.split("-")[1:3] == [verify.trace_id, verify.span_id]
        assert int(parent[-2:], 16) & 1


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
    assert len(got.named("spec_round")) == len(world.performed(events.SendVerify))


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
    assert set(world.parents.values()) == {""}, "for its rounds, what its opening said holds"


def test_without_a_collector_there_is_no_trace_to_pass_on(start):
    world = TracedWorld(start())
    assert world.recorder.traceparent("s") == ""
    world.finish()
    assert set(world.parents.values()) == {""}
    assert world.lawful()


def test_a_session_the_recorder_never_met_is_ignored(start):
    world = TracedWorld(start())
    world.recorder.end_generate("s")
    world.finish()
    assert world.recorder.traceparent("s") == world.recorder.round_traceparent("s", 1) == ""


def test_every_span_and_attribute_is_declared(traced):
    _, got = traced(faults=Faults(accuracy=0.6, lose_verifier=0.03), max_in_flight=2)
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


def test_a_draft_that_was_taken_at_the_verifier_is_part_of_its_round(receiver, start):
    """Its verdict tells what was not known when its block left: none is a fallback only then."""
    telemetry = start()
    world = Together(follows([1, 2, 3, 4, 5]), (1, 2), [0])
    recorder = Recorder(telemetry, clock=lambda: world.now)
    recorder.start_generate("s", world.state.config, model="tiny", traceparent=CLIENT)
    records = []

    def on_step(event, actions, state):
        records.extend(one.commit.record for one in actions if isinstance(one, events.Persist))
        recorder.on_step("s", event, actions, state)

    world.on_step = on_step
    world.run()
    recorder.end_generate("s")
    got = received(receiver, telemetry)
    rounds = {span.attributes[names.ROUND_INDEX]: span for span in got.named("spec_round")}
    assert sum(len(taken.tree) > 0 for taken in world.taken) > 3
    for record in records:
        span = rounds[record.round]
        assert span.attributes[names.DRAFT_TOKENS] == record.draft_tokens
        drafts = [part for part in got.children(span) if part.name == "spec_draft"]
        assert len(drafts) == (record.draft_tokens > 0)
        assert (names.FALLBACK in span.attributes) == (not record.draft_tokens)
