"""Hidden states of the target, for drafters that draft from them (EAGLE-3, 2503.01840).

A row is what one token's states in the chosen layers are, side by side in the order of the
layers: `width` numbers, bfloat16, little-endian. Layer i stands for what goes into it, counted
from 0; the number of layers for what the last one puts out. Rows are of tokens that follow one
another in the text, prompt and output; they carry the position of the first.

States are best effort: whoever has no room for them drops them, and drafts get worse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple, TypeVar

from services.contract.frames import StepFrame
from services.contract.types import (
    STATES,
    CommitDraft,
    DraftStates,
    States,
    Verdict,
    WorkerDescription,
    states_capability,
)
from services.contract.worker_messages import TextStates

MOST_LAYERS = 16
"""Layers that a session may ask for."""
MESSAGE_BYTES = 1 << 20
"""The rows of one message, and a row, at most."""
_NUMBER = 2

M = TypeVar("M")


class StateShape(NamedTuple):
    """What a row holds: its layers, and how many numbers; without layers there are no states."""

    layers: tuple[int, ...] = ()
    width: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return _NUMBER * self.width


NO_STATES = StateShape()


class Fate(StrEnum):
    """What became of states, where bytes of them are counted."""

    SENT = "sent"
    RECEIVED = "received"
    DROPPED = "dropped"


OnStates = Callable[[Fate, int], object]
"""Is told of bytes of states."""


class StateRows(NamedTuple):
    """Rows of a session's text from `position` on, in prompt and output.

    `tokens`: the ones behind each row's token, where a step brought them with the rows. They
    say which text it is that the rows are of; rows of a prompt need none.
    """

    position: int
    states: bytes
    tokens: tuple[int, ...] = ()


def row_count(states: bytes, width: int) -> int:
    """How many rows these are; 0 for none, and for what is no whole number of them."""
    size = _NUMBER * width
    return len(states) // size if size and len(states) % size == 0 else 0


def rows_a_message(width: int) -> int:
    """How many rows a message may have; 0 = a row is too large for one."""
    return MESSAGE_BYTES // (_NUMBER * width) if width > 0 else 0


def sound(layers: Sequence[int]) -> bool:
    """Whether these are layers that may be asked for: few, ascending; none will do."""
    return len(layers) <= MOST_LAYERS and list(layers) == sorted(set(layers))


def needed(drafter: WorkerDescription, methods: Sequence[str]) -> StateShape:
    """The states that a drafter needs for methods; none for methods that need none."""
    wanting = {states_capability(method) for method in methods} & set(drafter.capabilities)
    return StateShape(drafter.state_layers, drafter.state_width) if wanting else NO_STATES


def gives(verifier: WorkerDescription, shape: StateShape) -> bool:
    """Whether a verifier can tell such states: it has these layers, and they are as wide."""
    layers, width = shape
    return (
        STATES in verifier.capabilities
        and bool(layers)
        and sound(layers)
        and layers[-1] <= verifier.hidden_layers
        and 0 < width == len(layers) * verifier.hidden_width
        and shape.row_bytes <= MESSAGE_BYTES
    )


_CARRIERS = (Verdict, CommitDraft, States, DraftStates, TextStates)


def states_of(message: object) -> bytes:
    """The states that a command or an event carries."""
    if isinstance(message, _CARRIERS):
        return message.states
    return b""


def state_bytes(message: object) -> int:
    """How many bytes of states a command or an event carries."""
    if isinstance(message, StepFrame):
        return sum(len(own.rows) for own in message.states)
    return len(states_of(message))


def without_states(message: M) -> M:
    """The same without its states."""
    if isinstance(message, StepFrame):
        return replace(message, states=())
    return message._replace(states=b"") if states_of(message) else message  # type: ignore
