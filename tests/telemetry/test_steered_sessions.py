"""Spans and counters of sessions that their verifiers run."""

from __future__ import annotations

from collections import Counter

import pytest
from opentelemetry.trace import SpanContext, TraceFlags

from orchestrator.recorder import Recorder
from orchestrator.steering import events, machine
from orchestrator.steering.ports import StepFacts, Taken
from services.contract.frames import StepRow, WaitReason
from services.contract.types import ResolvedSampling, Role
from services.runtime.telemetry import names
from services.runtime.telemetry.children import round_of, verifying_of
from services.runtime.telemetry.names import Fallback
from tests.steering.made import Made
from tests.steering.world import Faults
from tests.telemetry.scrape import scrape
from tests.telemetry.traced_world import TracedWorld


class Watched(Made):
    """One session under the name "s", led step by step, with a recorder."""

    def __init__(self, telemetry, **made) -> None:
        self.at = 0.0
        self.recorder = Recorder(telemetry, clock=lambda: self.at)
        super().__init__(**made)

    def feed(self, event: events.Event) -> Watched:
        if isinstance(event, events.Begin):
            self.recorder.start_generate("s", self.state.config, model="tiny")
        before, self.at = self.state, event.at
        self.state, actions = machine.step(self.state, event)
        self.actions += actions
        self.recorder.on_turn("s", event, actions, before, self.state)
        return self

    def says(self, row: StepRow, window: int | None = None, at: float = 0.0) -> Watched:
        """A step, and how far the drafter is to be ahead from then on."""
        facts = StepFacts(1, step_ms=6.0, sessions=3, rows=5, heard_at=at)
        taken = (Taken(row, facts, window),)
        return self.feed(events.StepsTaken(at, "v", taken, lag_s=0.001)).stored(at)


@pytest.fixture
def traced(receiver, start):
    """Runs a session to its end: it, and what the collector has of it then."""

    def traced(*given, **options):
        telemetry = start()
        world = TracedWorld(telemetry, *given, **options).finish()
        telemetry.shutdown()
        return world, receiver

    return traced


def only(spans):
    assert len(spans) == 1
    return spans[0]


def test_a_session_is_one_tree_whose_rounds_add_up_to_its_tokens(traced):
    world, got = traced(faults=Faults(accuracy=0.7, store_speed=0.3), max_tokens=48)
    assert any(len(commit.records) > 1 for commit in world.commits)
    root = only(got.named("Generate"))
    rounds = got.named("spec_round")
    assert {round.parent_id for round in rounds} == {root.span_id}
    assert len(got.spans) == 1 + len(got.children(root)) + sum(
        len(got.children(round)) for round in rounds
    )
    emitted = sum(round.attributes[names.EMITTED_TOKENS] for round in rounds)
    assert emitted == len(world.emitted) == root.attributes[names.EMITTED_TOKENS] == 48
    assert root.attributes[names.ROUNDS] == len(rounds) == len(world.records())
    assert root.attributes[names.FINISH_REASONS] == ["length"]


def test_a_round_says_what_its_record_says_and_its_commit_is_stored_behind_the_last(traced):
    world, got = traced(faults=Faults(accuracy=0.7, store_speed=0.3))
    spans = {span.attributes[names.ROUND_INDEX]: span for span in got.named("spec_round")}
    lasts = {commit.record.round for commit in world.commits}
    assert len(spans) == len(world.records())
    for record in world.records():
        span = spans[record.round]
        said = span.attributes
        assert said[names.DRAFT_TOKENS] == record.draft_tokens
        assert said[names.ACCEPTED_TOKENS] == record.accepted_tokens
        assert (said[names.VERIFIER], said[names.OPENING]) == (record.verifier, record.epoch)
        assert span.end - span.start == pytest.approx(record.round_ms * 1e6, abs=2e3)
        parts = Counter(child.name for child in got.children(span))
        drafted = {"spec_draft": 1} if record.draft_tokens else {}
        stored = {"persist": 1} if record.round in lasts else {}
        assert parts == {"spec_verify": 1} | drafted | stored


def test_every_process_knows_the_place_of_a_round(traced):
    world, got = traced()
    root = only(got.named("Generate"))
    flags = TraceFlags(TraceFlags.SAMPLED)
    place = SpanContext(int(root.trace_id, 16), int(root.span_id, 16), True, flags)
    for name, place_of in (("spec_round", round_of), ("spec_verify", verifying_of)):
        told = {span.span_id for span in got.named(name)}
        derived = {place_of(place, one.epoch, one.base_len).span_id for one in world.records()}
        assert told == {f"{span_id:016x}" for span_id in derived}


def test_a_round_without_a_draft_says_why_if_the_session_speculates(traced):
    world, got = traced(faults=Faults(drafter_speed=0.3))
    reasons = set()
    for span in got.named("spec_round"):
        plain = not span.attributes[names.DRAFT_TOKENS]
        assert plain is (names.FALLBACK in span.attributes)
        reasons.add(span.attributes.get(names.FALLBACK))
    assert Fallback.NOTHING_READY in reasons
    assert world.records()


def test_a_session_that_asks_for_no_drafts_does_not_fall_back(traced):
    _, got = traced(method="")
    assert not any(names.FALLBACK in span.attributes for span in got.named("spec_round"))


def test_opening_a_worker_is_a_prefill_span_and_a_lost_one_a_migration(traced):
    world, got = traced(faults=Faults(lose_verifier=0.02))
    lost = [event for event, _ in world.trace if isinstance(event, events.WorkerLost)]
    assert any(event.role is Role.VERIFIER for event in lost)
    prefills = [one for one in got.named("prefill") if one.attributes[names.ROLE] == "verifier"]
    assert len(prefills) == world.state.verifiers.openings
    moves = [one for one in got.named("migrate") if one.attributes[names.ROLE] == "verifier"]
    assert moves
    assert all(one.attributes[names.COMPLETED] for one in moves)


def test_counters_agree_with_the_run(telemetry):
    faults = Faults(accuracy=0.8, lose_verifier=0.02, verifier_speed=0.1)
    world = TracedWorld(telemetry, 3, faults, max_tokens=128).finish()
    page = scrape(telemetry)
    done = world.records()
    drafts = [record for record in done if record.draft_tokens]
    assert page.value("paceline_emitted_tokens_total") == 128
    assert page.value("paceline_drafts_total") == len(drafts) > 0
    assert page.value("paceline_draft_tokens_total") == sum(one.draft_tokens for one in done)
    assert page.value("paceline_accepted_tokens_total") == sum(one.accepted_tokens for one in done)
    moves = page.value("paceline_session_migrations_total", role="verifier")
    assert moves == world.state.verifiers.openings - 1 > 0


def test_the_load_on_workers_is_told_while_a_session_is_at_work(telemetry):
    world = TracedWorld(telemetry)
    world.feed(events.Begin(0.0))
    waits = scrape(telemetry)
    assert waits.value("paceline_verify_queue_tokens") == len(world.state.config.prompt)
    assert waits.value("paceline_sessions_without_speculation") == 1
    assert waits.value("paceline_drafters_wanted") == 1
    while world.state.drafter is None or not world.state.drafter.opened:
        world.turn()
    works = scrape(telemetry)
    assert works.value("paceline_verify_queue_tokens") == 1
    assert works.value("paceline_sessions_without_speculation") == 0


def test_a_drafter_that_is_told_to_rest_is_not_wanted_and_rounds_say_why(telemetry):
    session = Watched(telemetry)
    session.serve()
    session.says(session.row(1), window=0)
    session.says(session.row(2))
    rests = scrape(telemetry)
    assert rests.value("paceline_drafters_wanted") == 0
    assert rests.value("paceline_sessions_without_speculation") == 1
    assert rests.value("paceline_rounds_fallback_total", reason=Fallback.NOTHING_READY) == 1
    assert rests.value("paceline_rounds_fallback_total", reason=Fallback.DOES_NOT_PAY) == 1
    session.says(session.row(3), window=4)
    tries = scrape(telemetry)
    assert tries.value("paceline_drafters_wanted") == 1
    assert tries.value("paceline_sessions_without_speculation") == 0
    assert tries.value("paceline_rounds_fallback_total", reason=Fallback.DOES_NOT_PAY) == 2


def test_the_last_steps_of_a_session_had_the_drafter_that_is_released_with_them(telemetry):
    session = Watched(telemetry, sampling=ResolvedSampling(max_tokens=2))
    session.serve()
    session.says(session.row(1))
    session.says(session.row(2))
    page = scrape(telemetry)
    assert page.value("paceline_rounds_fallback_total", reason=Fallback.NOTHING_READY) == 2
    assert page.value("paceline_rounds_fallback_total", reason=Fallback.NO_DRAFTER) == 0


def test_a_session_whose_resting_drafter_has_left_wants_one_again(telemetry):
    session = Watched(telemetry)
    session.serve()
    session.says(session.row(1), window=0)
    session.lose(role=Role.DRAFTER)
    assert scrape(telemetry).value("paceline_drafters_wanted") == 1


def test_the_queue_has_the_rows_that_a_next_step_is_likely_to_have(telemetry):
    session = Watched(telemetry)
    session.serve()
    session.says(session.row(1, 2, accepted=1, judged=(1, 8, 9)))
    assert scrape(telemetry).value("paceline_verify_queue_tokens") == 1 + 3
    session.says(session.row(3))
    assert scrape(telemetry).value("paceline_verify_queue_tokens") == 1


def test_time_for_which_drafts_were_waited_for_is_the_verifiers_starvation(telemetry):
    session = Watched(telemetry)
    session.serve()
    session.says(session.row(1, queue_ms=40.0, hold_ms=30.0))
    session.says(session.row(2, queue_ms=1.0))
    page = scrape(telemetry)
    assert page.value("paceline_verifier_starved_seconds_total") == pytest.approx(0.03)
    assert page.value("paceline_verify_queue_wait_seconds_sum") == pytest.approx(0.041)


def test_why_a_session_takes_no_part_in_steps_is_told_until_it_does(telemetry):
    assert [*names.WAITS] == [reason.name.lower() for reason in WaitReason]
    session = Watched(telemetry)
    session.serve()
    for reason in WaitReason:
        session.feed(events.Waited(0.1, "v", reason))
        page = scrape(telemetry)
        said = {of: page.value("paceline_sessions_waiting", reason=of) for of in names.WAITS}
        assert said == dict.fromkeys(names.WAITS, 0) | {reason.name.lower(): 1}
    session.says(session.row(1), at=0.2)
    assert scrape(telemetry).value("paceline_sessions_waiting", reason="ended") == 0


def test_drafting_ends_where_the_draft_came_and_the_round_has_its_wait(receiver, start):
    telemetry = start()
    session = Watched(telemetry)
    session.serve()
    row = session.row(1, 2, accepted=1, queue_ms=5.0, hold_ms=4.0, age_ms=2.0, draft_ms=1.5)
    session.says(row, at=1.0)
    session.recorder.end_generate("s")
    telemetry.shutdown()
    round, draft = only(receiver.named("spec_round")), only(receiver.named("spec_draft"))
    assert round.attributes[names.HOLD_MS] == 4.0
    assert round.attributes[names.DRAFT_AGE] == 2.0
    assert round.end - round.start == pytest.approx(11e6, abs=2e3)
    assert draft.end - round.start == pytest.approx(3e6, abs=2e3)
    assert draft.end - draft.start == pytest.approx(1.5e6, abs=2e3)


def test_what_a_verifier_found_of_a_text_is_told_though_its_first_step_comes_before(
    receiver, start
):
    telemetry = start(metrics_port=0)
    session = Watched(telemetry)
    session.attach(Role.VERIFIER, "v")
    session.says(session.row(1))
    session.feed(events.Started(0.1, Role.VERIFIER, "v", 1, 1))
    page = scrape(telemetry)
    assert page.value("paceline_prefill_tokens_total", source="cached") == 1
    session.recorder.end_generate("s")
    telemetry.shutdown()
    prefill = only(receiver.named("prefill"))
    assert prefill.attributes[names.CACHED_TOKENS] == 1
    assert prefill.attributes[names.COMPLETED]


def test_a_text_was_read_where_the_first_steps_are_the_last_ones(receiver, start):
    telemetry = start(metrics_port=0)
    session = Watched(telemetry, method="", sampling=ResolvedSampling(max_tokens=1))
    session.attach(Role.VERIFIER, "v")
    session.says(session.row(1))
    page = scrape(telemetry)
    assert page.value("paceline_prefill_tokens_total", source="computed") == 1
    session.recorder.end_generate("s")
    telemetry.shutdown()
    assert only(receiver.named("prefill")).attributes[names.COMPLETED]


def test_a_text_was_not_read_by_a_verifier_that_was_lost_before_its_first_step(receiver, start):
    telemetry = start(metrics_port=0)
    session = Watched(telemetry, method="")
    session.attach(Role.VERIFIER, "v")
    session.lose(0.2)
    page = scrape(telemetry)
    assert page.value("paceline_prefill_tokens_total", source="computed") == 0
    session.recorder.end_generate("s")
    telemetry.shutdown()
    assert not only(receiver.named("prefill")).attributes[names.COMPLETED]
