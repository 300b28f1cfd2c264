"""Room for states that wait in a queue, and which messages go first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from services.contract.states import Fate, OnStates, states_of, without_states
from services.contract.types import DraftStates, States

M = TypeVar("M")


class StateRoom:
    """The bytes of states that may wait in one queue: beyond them messages go without."""

    def __init__(self, most: int, on_states: OnStates | None = None) -> None:
        self._most = most
        self._on_states = on_states
        self.held = 0

    def admit(self, message: M) -> M | None:
        """The message, without its states where there is no room; None: nothing is left of it."""
        size = len(states_of(message))
        if not size:
            return message
        if self.held + size <= self._most:
            self.held += size
            return message
        if self._on_states is not None:
            self._on_states(Fate.DROPPED, size)
        return None if isinstance(message, States | DraftStates) else without_states(message)

    def release(self, messages: Sequence[object]) -> None:
        """These wait no more."""
        if self.held:
            self.held -= sum(len(states_of(message)) for message in messages)


def portion(messages: Sequence[M], most: int) -> tuple[list[M], list[M]]:
    """What goes now, with about `most` bytes of states, and what after it.

    Each session's messages keep their order. Those of sessions without states go first.
    """
    laden = {_session(message) for message in messages if states_of(message)}
    now = [message for message in messages if _session(message) not in laden]
    later: list[M] = []
    behind: set[str] = set()
    for message in messages:
        session, size = _session(message), len(states_of(message))
        if session not in laden:
            continue
        if session in behind or (size and most <= 0):
            behind.add(session)
            later.append(message)
        else:
            most -= size
            now.append(message)
    return now, later


def _session(message: object) -> str:
    return getattr(message, "session", "")
