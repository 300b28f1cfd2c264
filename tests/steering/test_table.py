"""The table at the machine's head is what the machine does."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import get_args

import pytest

from orchestrator.steering import events, machine
from orchestrator.steering.config import Phase
from orchestrator.steering.ports import StepFacts, Taken
from orchestrator.steering.state import State, Turn
from services.contract.frames import StepRow, WaitReason
from services.contract.states import StateShape
from services.contract.types import Role
from services.contract.worker_messages import TextStates
from tests.steering.made import HANDLE, Made

SHAPE = StateShape((0,), 4)


def _table() -> dict[tuple[str, Phase], str]:
    """What an event does in a phase, as the docstring says it."""
    lines = [line.strip() for line in (machine.__doc__ or "").splitlines()]
    head = next(line for line in lines if line.startswith("event "))
    starts = [match.start() for match in re.finditer(r"\S+", head)][1:]
    ends = [*starts[1:], None]
    phases = [Phase[name] for name in head.split()[1:]]
    table = {}
    for line in lines[lines.index(head) + 1 :]:
        if not line:
            break
        for phase, first, end in zip(phases, starts, ends, strict=True):
            table[line.split()[0], phase] = line[first:end].strip()
    return table


TABLE = _table()


def _in(phase: Phase) -> list[Made]:
    """Sessions in a phase, in different positions."""
    made = [Made(method="eagle", states=SHAPE) for _ in range(3)]
    if phase is Phase.NEW:
        for one in made:
            one.state = one.state._replace(phase=Phase.NEW)
        made[1].feed(events.Detached(0.0))
        return made
    made[0].serve().take(5)
    made[1].attach(Role.VERIFIER, "v").feed(events.Detached(0.0))
    match phase:
        case Phase.FINISHING:
            made = [made[0].refuse(for_good=True)]
        case Phase.SUSPENDED:
            made = [made[0].refuse(fatal=True)]
        case Phase.DONE:
            made = [made[0].feed(events.AbortRequested(0.0))]
    assert {one.state.phase for one in made} == {phase}
    return made


def _event(name: str, state: State) -> events.Event:
    """One that says something new, if it is heard."""
    states = TextStates(HANDLE, 1, 0, bytes(SHAPE.row_bytes))
    row = StepRow(HANDLE, 1, len(state.committed), (4,))
    known: dict[str, events.Event] = {
        "Begin": events.Begin(3.0),
        "WorkerAttached": events.WorkerAttached(3.0, Role.VERIFIER, "other"),
        "Started": events.Started(3.0, Role.VERIFIER, "v", 1, 1),
        "StepsTaken": events.StepsTaken(3.0, "v", (Taken(row, StepFacts(1)),)),
        "StatesTold": events.StatesTold(3.0, "v", states),
        "Waited": events.Waited(3.0, "v", WaitReason.KV),
        "WorkerLost": events.WorkerLost(3.0, Role.VERIFIER, "v"),
        "Persisted": events.Persisted(3.0, 99),
        "Capped": events.Capped(3.0, 1),
        "Detached": events.Detached(3.0),
        "Reattached": events.Reattached(3.0),
        "AbortRequested": events.AbortRequested(3.0),
        "Tick": events.Tick(1e6),
        "StoodStill": events.StoodStill(3.0, 1.0),
    }
    return known[name]


@pytest.mark.parametrize(("name", "phase"), TABLE)
def test_an_event_does_something_where_the_table_says_so_and_nothing_elsewhere(name, phase):
    moved = []
    for made in _in(phase):
        after, actions = machine.step(made.state, _event(name, made.state))
        moved.append(bool(actions) or after != made.state)
    assert any(moved) is (TABLE[name, phase] != "-")


def test_the_table_has_every_event_and_every_phase():
    names = {event.__name__ for event in get_args(events.Event)}
    assert set(TABLE) == {(name, phase) for name in names for phase in Phase}


def test_a_turn_ends_in_the_state_that_it_began_with_where_nothing_happens():
    state = Made().serve().take(5).state
    assert Turn(*state).state() == state
    assert [one.name for one in fields(Turn)][:-2] == list(State._fields)


def test_a_state_that_was_left_stays_as_it_was():
    made = Made().serve()
    before, copy = made.state, State(*made.state)
    made.take(5).lose()
    assert before == copy
    assert made.state != before
