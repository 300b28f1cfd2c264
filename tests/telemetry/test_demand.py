"""What sessions ask of workers is told by their orchestrator, with workers or without."""

from orchestrator.core.events import AbortRequested, Capped, WorkerLost
from orchestrator.recorder import watch_memory
from orchestrator.recorder.demand import queued_tokens, wants_drafts
from services.contract.types import Progress, Role, VerifyMode
from tests.core.machine import Machine
from tests.telemetry.scrape import scrape
from tests.telemetry.traced_world import TracedWorld


def test_the_whole_text_waits_until_a_verifier_has_the_session_open():
    made = Machine(VerifyMode.GREEDY)
    assert queued_tokens(made.state) == 1
    made.serve().draft(1, 2).answer(1, 2, 3, accepted=2, whole=True)
    assert queued_tokens(made.state) == 0
    made.feed(WorkerLost(0.0, Role.VERIFIER, "v"))
    assert queued_tokens(made.state) == 1 + 3


def test_a_block_waits_from_its_sending_to_its_verdict():
    assert queued_tokens(Machine(VerifyMode.GREEDY).serve().draft(1, 2).state) == 3


def test_a_session_wants_drafts_whether_a_drafter_has_it_or_not():
    made = Machine(VerifyMode.GREEDY)
    assert wants_drafts(made.state)
    made.feed(WorkerLost(0.0, Role.DRAFTER, "d"))
    assert made.state.drafter is None
    assert wants_drafts(made.state)


def test_a_session_without_room_for_drafts_wants_none():
    made = Machine(VerifyMode.GREEDY).feed(Capped(0.0, 0))
    assert not wants_drafts(made.state)
    made.feed(Capped(0.0, 4))
    assert wants_drafts(made.state)


def test_a_session_that_drafters_failed_for_good_wants_none():
    made = Machine(VerifyMode.GREEDY).feed(WorkerLost(0.0, Role.DRAFTER, "d", fatal=True))
    assert not wants_drafts(made.state)


def test_a_session_that_has_ended_asks_for_nothing():
    made = Machine(VerifyMode.GREEDY).feed(AbortRequested(0.0))
    assert queued_tokens(made.state) == 0
    assert not wants_drafts(made.state)


def test_what_sessions_ask_for_is_on_the_page_while_they_live(telemetry):
    world = TracedWorld(telemetry, max_tokens=1000).to_a_block_in_flight()
    page = scrape(telemetry)
    assert page.value("paceline_verify_queue_tokens") == queued_tokens(world.state) > 0
    assert page.value("paceline_drafters_wanted") == 1
    world.recorder.end_generate("s")
    page = scrape(telemetry)
    assert page.value("paceline_verify_queue_tokens") == 0
    assert page.value("paceline_drafters_wanted") == 0


def test_the_workers_memory_is_summed_by_role_and_outlives_them(telemetry):
    heard = [
        Progress(kv_tokens_used=3, kv_tokens_capacity=10),
        Progress(kv_tokens_used=4, kv_tokens_capacity=20),
    ]
    watch_memory(telemetry, lambda role: heard if role is Role.VERIFIER else [])
    page = scrape(telemetry)
    assert page.value("paceline_kv_used_tokens", role="verifier") == 7
    assert page.value("paceline_kv_capacity_tokens", role="verifier") == 30
    assert page.value("paceline_kv_capacity_tokens", role="drafter") == 0
    heard.clear()
    page = scrape(telemetry)
    assert page.value("paceline_kv_used_tokens", role="verifier") == 0
    assert page.value("paceline_kv_capacity_tokens", role="verifier") == 0
