"""States of the target on their way to the drafter: as they came, behind its opening."""

from __future__ import annotations

import pytest

from orchestrator.steering.events import StatesTold, TellStates
from services.contract.states import NO_STATES, StateShape
from services.contract.types import Role
from services.contract.worker_messages import StartDraft, TextStates
from tests.steering.made import HANDLE, PROMPT, Made

SHAPE = StateShape((0, 2), 4)
ROW = SHAPE.row_bytes


def rows(first: int, count: int) -> bytes:
    """Rows that differ."""
    return b"".join(bytes([first + row]) * ROW for row in range(count))


def session(shape: StateShape = SHAPE) -> Made:
    return Made(method="eagle", states=shape)


def tell(made: Made, position: int, states: bytes, worker: str = "v", opening: int = 1) -> Made:
    return made.feed(StatesTold(0.0, worker, TextStates(HANDLE, opening, position, states)))


def told(made: Made) -> list[TextStates]:
    return [action.states for action in made.performed(TellStates)]


def test_the_verifier_is_asked_for_what_the_drafter_needs_and_for_nothing_else():
    assert session().serve().verifies()[0].state_layers == SHAPE.layers
    assert session(NO_STATES).serve().verifies()[0].state_layers == ()


def test_nobody_is_told_what_was_not_asked_for():
    assert told(tell(session(NO_STATES).serve(), 0, rows(1, 1))) == []


def test_a_texts_states_go_to_the_drafter_behind_its_opening():
    made = tell(session().attach(Role.VERIFIER, "v"), 0, rows(0, 1))
    assert told(made) == []
    tell(made.attach(Role.DRAFTER, "d"), 0, rows(1, 1))
    assert told(made) == [TextStates(HANDLE, 1, 0, rows(1, 1))]
    messages = [getattr(action, "message", None) or action for action in made.actions]
    kinds = [type(message) for message in messages]
    assert kinds.index(StartDraft) < kinds.index(TellStates)


@pytest.mark.parametrize(
    ("position", "states", "worker", "opening"),
    [
        (0, rows(0, 1), "other", 1),
        (0, rows(0, 1), "v", 0),
        (0, rows(0, 1), "v", 2),
        (0, rows(0, 1)[1:], "v", 1),
        (0, b"", "v", 1),
        (len(PROMPT), rows(0, 2), "v", 1),
        (1 << 31, rows(0, 1), "v", 1),
    ],
)
def test_states_of_another_text_verifier_or_opening_are_dropped(position, states, worker, opening):
    made = session().serve().take(5)
    assert told(tell(made, position, states, worker, opening)) == []


def test_they_carry_the_opening_that_the_drafter_knows():
    made = session().serve().lose(role=Role.DRAFTER).start(Role.DRAFTER, "e")
    assert told(tell(made, 0, rows(0, 1))) == [TextStates(HANDLE, 2, 0, rows(0, 1))]


def test_a_drafter_that_comes_later_is_told_nothing_of_the_text_before():
    made = tell(session().attach(Role.VERIFIER, "v"), 0, rows(0, 1))
    made.start(Role.DRAFTER, "d")
    assert told(made) == []
