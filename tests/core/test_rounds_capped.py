"""Under load a session drafts less, down to nothing, and more again when the load has gone."""

import pytest

from orchestrator.core.events import (
    Capped,
    OpenOnWorker,
    SendToDrafter,
    WorkerLost,
)
from services.contract.types import Credit, OpenDraft, Role, VerifyMode
from tests.core.machine import Machine


def capped(session: Machine, window: int) -> None:
    session.feed(Capped(0.0, window))


def windows(session: Machine) -> list[int]:
    messages = [action.message for action in session.performed(SendToDrafter)]
    return [message.window for message in messages if isinstance(message, Credit)]


@pytest.mark.parametrize("mode", list(VerifyMode))
def test_the_drafter_is_told_of_a_smaller_window_and_of_the_whole_one_again(mode):
    session = Machine(mode, window=4).serve()
    for window in (2, 2, 0, 9):
        capped(session, window)
    assert windows(session) == [2, 0, 4]


def test_a_cap_of_none_leaves_plain_rounds_whatever_was_drafted_before():
    session = Machine(VerifyMode.GREEDY, count=2, window=4).draft(1, 2, 3)
    capped(session, 0)
    session.serve().answer(1, accepted=0, whole=True)
    assert [len(block.tree) for block in session.sent()] == [0, 0]


def test_a_block_holds_no_more_than_the_cap_allows():
    session = Machine(VerifyMode.GREEDY, count=4, window=4)
    capped(session, 1)
    session.draft(1, 2, 3, 4).serve()
    assert [block.tree.token_ids for block in session.sent()] == [(1,)]


def test_a_drafter_that_opens_the_session_under_load_is_given_the_smaller_window():
    session = Machine(VerifyMode.GREEDY, window=4).serve()
    capped(session, 1)
    session.feed(WorkerLost(0.0, Role.DRAFTER, "d")).attach(Role.DRAFTER, "d2")
    opened = [action.message for action in session.performed(OpenOnWorker)]
    assert [message.window for message in opened if isinstance(message, OpenDraft)] == [4, 1]


def test_a_drawn_tree_keeps_its_window_since_no_place_may_be_drawn_twice():
    session = Machine(VerifyMode.STANDARD, window=4, num_candidates=2).serve()
    capped(session, 0)
    assert windows(session) == []
    assert session.state.window == 4
