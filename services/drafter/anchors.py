"""States of the target on their way to a drafting method: which rows are of the session's text.

Rules:

1.  Rows are of committed text only: the last one's token, and the tokens that came with the rows,
    have been committed. Those of text to come may wait, where somebody holds them.
2.  The tokens that came with them are those of the text.
3.  What fits nowhere is dropped and counted. It costs speed, never the session.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

from services.contract.errors import StartError
from services.contract.states import (
    NO_STATES,
    Fate,
    OnStates,
    StateRows,
    StateShape,
    row_count,
)
from services.drafter.protocol import Drafter, SessionKey, TakesStates, states_needed

_log = logging.getLogger(__name__)


class Anchored(Protocol):
    """A session whose text rows of states may be of.

    `text` begins with the prompt and the `committed_length` tokens of output behind it.
    """

    prompt_length: int
    committed_length: int

    @property
    def text(self) -> Sequence[int]:
        """Prompt + output."""


def shape_of(drafters: Iterable[Drafter]) -> StateShape:
    """The states that methods need. Raises StartError unless all that need any need the same."""
    shapes = {states_needed(drafter) for drafter in drafters} - {NO_STATES}
    if len(shapes) > 1:
        raise StartError("method: methods of one drafter need states of different layers")
    return next(iter(shapes), NO_STATES)


class Anchors:
    """Gives methods the rows that fit."""

    def __init__(self, shape: StateShape, on_states: OnStates | None = None) -> None:
        """`shape`: of all rows; `on_states` is told of bytes that were given and dropped."""
        self.shape = shape
        self._on_states = on_states

    def give(
        self, key: SessionKey, session: Anchored, drafter: Drafter, rows: StateRows
    ) -> bool | None:
        """Whether the method got the rows; None: they are of text to come."""
        placed = place(session, rows, self.shape.width)
        if placed and isinstance(drafter, TakesStates) and drafter.needed_states.layers:
            try:
                drafter.anchor(key, rows.position, rows.states)
            except Exception:
                _log.exception("states of the target were not taken in")
            else:
                self._count(Fate.RECEIVED, rows)
                return True
        if placed is not None:
            self.drop(rows)
            return False
        return None

    def drop(self, rows: StateRows) -> None:
        """Count rows that nobody gets."""
        self._count(Fate.DROPPED, rows)

    def _count(self, fate: Fate, rows: StateRows) -> None:
        if self._on_states is not None:
            self._on_states(fate, len(rows.states))


def place(session: Anchored, rows: StateRows, width: int) -> bool | None:
    """Whether rows are of a session's text; None: of what may be committed yet."""
    count, tokens = row_count(rows.states, width), rows.tokens
    if not count or rows.position < 0 or len(tokens) not in (0, count):
        return False
    end = rows.position + count + bool(tokens)
    if end > session.prompt_length + session.committed_length:
        return None
    return not tokens or tuple(session.text[rows.position + 1 : end]) == tokens
