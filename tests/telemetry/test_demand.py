"""What sessions ask of workers is told by their orchestrator, with workers or without."""

import pytest

from orchestrator.recorder import watch_memory
from orchestrator.steering.events import AbortRequested, Capped
from services.contract.types import Progress, Role
from tests.telemetry.scrape import scrape
from tests.telemetry.test_steered_sessions import Watched
from tests.telemetry.traced_world import TracedWorld


@pytest.fixture
def made(telemetry):
    return Watched(telemetry)


@pytest.fixture
def queued(telemetry):
    return lambda: scrape(telemetry).value("paceline_verify_queue_tokens")


@pytest.fixture
def wanted(telemetry):
    return lambda: scrape(telemetry).value("paceline_drafters_wanted")


def test_the_whole_text_waits_until_a_verifier_has_the_session_open(made, queued):
    assert queued() == 1
    made.serve().take(1, 2, 3, accepted=2)
    made.lose()
    assert queued() == 1 + 3


def test_a_session_wants_drafts_whether_a_drafter_has_it_or_not(made, wanted):
    assert wanted() == 1
    made.serve()
    made.lose(role=Role.DRAFTER)
    assert made.state.drafter is None
    assert wanted() == 1


def test_a_session_without_room_for_drafts_wants_none(made, wanted):
    made.feed(Capped(0.0, 0))
    assert wanted() == 0
    made.feed(Capped(0.0, 4))
    assert wanted() == 1


def test_a_session_that_drafters_failed_for_good_wants_none(made, wanted):
    made.serve()
    made.refuse(role=Role.DRAFTER, fatal=True)
    assert wanted() == 0


def test_a_session_that_has_ended_asks_for_nothing(made, queued, wanted):
    made.feed(AbortRequested(0.0))
    assert queued() == wanted() == 0


def test_what_sessions_ask_for_is_on_the_page_while_they_live(telemetry, queued, wanted):
    world = TracedWorld(telemetry, max_tokens=1000).run(steps=50)
    assert queued() > 0
    assert wanted() == 1
    world.recorder.end_generate("s")
    assert queued() == wanted() == 0


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
