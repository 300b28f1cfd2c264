"""Room for states that wait in a queue, and which messages go first."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any, TypeVar

from services.contract.frames import StepFrame, select_steps
from services.contract.states import Fate, OnStates, state_bytes

M = TypeVar("M")


class StateRoom:
    """The bytes of states that may wait in one queue: beyond them messages go without."""

    def __init__(self, most: int, on_states: OnStates | None = None) -> None:
        self._most = most
        self._on_states = on_states
        self.held = 0

    def admit(self, message: M) -> M | None:
        """The message, without its states where there is no room; None: nothing is left of it."""
        size = state_bytes(message)
        if not size:
            return message
        if self.held + size <= self._most:
            self.held += size
            return message
        if self._on_states is not None:
            self._on_states(Fate.DROPPED, size)
        return replace(message, states=()) if isinstance(message, StepFrame) else None

    def release(self, messages: Sequence[object]) -> None:
        """These wait no more."""
        if self.held:
            self.held -= sum(map(state_bytes, messages))


Handles = Set[int]


def portion(messages: Sequence[M], most: int) -> tuple[list[M], list[M]]:
    """What goes now, with about `most` bytes of states, and what after it.

    Each session's messages keep their order. Those of sessions without states go first, and so
    does what frames say of them.
    """
    laden = set[int]().union(*map(_laden, messages))
    now: list[M] = []
    bound: list[M] = []
    for message in messages:
        free, tied = _parted(message, laden)
        now += free
        bound += tied
    later: list[M] = []
    behind: set[int] = set()
    for message in bound:
        waits = (_sessions(message) & behind) | (_laden(message) if most <= 0 else set())
        behind |= waits
        goes, stays = _parted(message, waits)
        most -= sum(map(state_bytes, goes))
        now += goes
        later += stays
    return now, later


def _parted(message: Any, some: Handles) -> tuple[list[Any], list[Any]]:
    """A message in two: what is of others, and what of these sessions; who stood out once."""
    own = _sessions(message)
    if own.isdisjoint(some):
        return [message], []
    if own <= some:
        return [], [message]
    each = list(enumerate(message.every_handle()))
    others = select_steps(message, [place for place, handle in each if handle not in some])
    these = select_steps(message, [place for place, handle in each if handle in some])
    return [others], [replace(these, stood_out=())]


def _sessions(message: object) -> Handles:
    """Whom a message concerns."""
    if isinstance(message, StepFrame):
        return set(message.every_handle())
    return {getattr(message, "handle", -1)}


def _laden(message: object) -> Handles:
    """Whose states it carries."""
    if isinstance(message, StepFrame):
        handles = message.every_handle()
        return {handles[own.place] for own in message.states if own.rows}
    return _sessions(message) if state_bytes(message) else set()
