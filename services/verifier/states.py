"""Hidden states of the target, told to a session's drafter as its text grows.

Every row goes once, with the token behind it or, of a text that is read, with its chunk:

    text        0 ........ n-1 | n ......        n tokens when it is opened
    told        chunks 0 .. n-2, then steps from n-1 on: of each token emitted
                the state of the token before it

What was found in a cache was computed for somebody else, and is not told.

One set of layers is watched at a time. A session that asks for others meanwhile goes on without
states, and so does whatever fails here: nothing of this is an error of a session.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from services.contract.states import Fate, OnStates, rows_a_message
from services.engine.port import Engine, Segment
from services.verifier.description import states_of
from services.verifier.fed_text import FedText, Telling

_log = logging.getLogger(__name__)

Who = TypeVar("Who", bound=Hashable)


class StateWatch:
    """Watches layers for the sessions that ask for it."""

    def __init__(self, engine: Engine, on_states: OnStates | None = None) -> None:
        self._engine = states_of(engine)
        self._on_states = on_states
        self._layers: tuple[int, ...] = ()
        self._refused: tuple[int, ...] = ()
        self._sessions: set[FedText] = set()

    def open(self, session: FedText, layers: tuple[int, ...] | None = None) -> None:
        """Tell a session's states from now on, if they can be had.

        `layers`: which; None = those that it asks for.
        """
        layers = session.opening.state_layers if layers is None else layers
        if layers and self._watches(layers):
            session.telling = Telling()
            self._sessions.add(session)

    def close(self, session: FedText) -> None:
        """Tell nothing more of a session."""
        session.telling = None
        self._sessions.discard(session)

    def _watches(self, layers: tuple[int, ...]) -> bool:
        engine = self._engine
        if engine is None or not rows_a_message(len(layers) * engine.hidden_width):
            return False
        if layers == self._layers or self._sessions or layers == self._refused:
            return layers == self._layers
        self._layers = ()
        try:
            engine.watch(layers)
        except Exception as error:
            _log.warning("no states of layers %s: %s", layers, error)
            self._refused = layers
            return False
        self._layers = layers
        return True

    def forward(self, segments: Sequence[Segment]) -> tuple[list[Tensor], list[Tensor]] | None:
        """A forward with states of all its tokens; None: it failed with them."""
        assert self._engine is not None
        try:
            return self._engine.forward_with_states(segments)
        except Exception as error:
            _log.warning("a step gives no states: %s", type(error).__name__)
            return None

    def of_prompt(
        self, session: FedText, fed: int, prompt: int, states: Tensor
    ) -> Iterator[tuple[int, bytes]]:
        """Positions and rows of what is to be told of the first `prompt` of `fed` new tokens.

        `states` [fed, width]. But for what was told before.
        """
        start = session.cache.length - fed
        telling = session.telling
        assert telling is not None
        skipped = max(0, telling.told - start)
        telling.told = max(telling.told, start + prompt)
        if skipped >= prompt:
            return
        try:
            rows = _host(states[skipped:prompt])
        except Exception:
            _log.exception("the states of a prompt are not told")
            return
        for row, some in _messages(rows, rows_a_message(rows.shape[-1])):
            yield start + skipped + row, some

    def in_one(self, rows_of: Iterable[tuple[Who, Tensor]]) -> dict[Who, bytes]:
        """Of everyone the rows [n, width], in one transfer; none where that fails."""
        try:
            told = list(rows_of)
            if not told:
                return {}
            host = _host(torch.cat([rows for _, rows in told]))
        except Exception:
            _log.exception("the states of a step are not told")
            return {}
        parts = host.split_with_sizes([len(rows) for _, rows in told])
        return {who: _bytes(part) for (who, _), part in zip(told, parts, strict=True)}

    def count(self, fate: Fate, states: bytes) -> None:
        """What became of these rows."""
        if self._on_states is not None:
            self._on_states(fate, len(states))


def _host(rows: Tensor) -> Tensor:
    return rows.to(torch.bfloat16).cpu()


def _bytes(rows: Tensor) -> bytes:
    """Bfloat16 rows in memory, little-endian."""
    return rows.contiguous().view(torch.int16).numpy().astype("<i2", copy=False).tobytes()


def _messages(rows: Tensor, each: int) -> Iterator[tuple[int, bytes]]:
    for row in range(0, len(rows), each):
        yield row, _bytes(rows[row : row + each])
