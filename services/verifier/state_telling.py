"""What is told of states by blocks and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from services.contract.states import Fate, OnStates, StateRows
from services.contract.types import States, Verdict
from services.engine.port import Engine
from services.runtime.tree_handover import StateExchange
from services.verifier.batch import Decision, Judged, Part
from services.verifier.fed_text import FedText
from services.verifier.session import VerifySession
from services.verifier.states import StateWatch
from services.verifier.types import HeldTelling

Emit = Callable[[int, States], None]


class StateTeller(StateWatch):
    """Tells what the states are."""

    def __init__(
        self,
        engine: Engine,
        emit: Emit,
        exchange: StateExchange | None = None,
        on_states: OnStates | None = None,
    ) -> None:
        """`exchange`: where a drafter in this process finds what it needs, instead of the wire."""
        super().__init__(engine, on_states)
        self._emit = emit
        self._exchange = exchange

    def open(self, session: FedText, layers: tuple[int, ...] | None = None) -> None:
        """The same, with a row that may wait."""
        super().open(session, layers)
        if session.telling is not None:
            session.telling = HeldTelling()

    def prompt(self, part: Part, states: Tensor) -> None:
        """Tell the states [rows fed, width] of a chunk of a text."""
        session = part.session
        for position, rows in self.of_prompt(session, part.rows, part.prompt, states):
            self._tell_rows(session, position, rows)

    def _tell_rows(self, session: VerifySession, position: int, states: bytes) -> None:
        link, name = session.key
        epoch = session.opening.epoch
        exchange = self._exchange
        if exchange is not None and exchange.needed.layers == self._layers:
            kept = exchange.leave(name, StateRows(epoch, position, states))
            self.count(Fate.SENT if kept else Fate.DROPPED, states)
        else:
            self._emit(link, States(name, epoch, position, states))
            self.count(Fate.SENT, states)

    def decided(
        self, blocks: Sequence[Judged], decisions: Sequence[Decision | Exception]
    ) -> dict[int, bytes]:
        """The rows of what each block emits, by the block's id: of all in one transfer."""
        return self.in_one(_emitted_rows(blocks, decisions))

    def verdict(self, session: VerifySession, verdict: Verdict, states: bytes) -> Verdict:
        """The verdict as it leaves: with its states, but for a drafter that hears them here."""
        if not states:
            return verdict
        position = len(session.opening.prompt) + verdict.base_len - 1
        rows = StateRows(verdict.epoch, position, states, verdict.token_ids)
        kept = self._left_beside(session, rows)
        self.count(Fate.DROPPED if kept is False else Fate.SENT, states)
        return verdict._replace(states=states) if kept is None else verdict

    def _left_beside(self, session: VerifySession, rows: StateRows) -> bool | None:
        """Whether a drafter in this process finds the rows; None: it is for one elsewhere.

        A drafter here that had the session once is the one that they are for; so is one whose
        opening may be on the way.
        """
        exchange, telling, name = self._exchange, session.telling, session.key[1]
        if exchange is None or telling is None or exchange.needed.layers != self._layers:
            return None
        first, listening = telling.beside is None, name in exchange.listening
        telling.beside = listening or bool(telling.beside)
        if listening or first:
            return exchange.leave(name, rows)
        exchange.forget(name)
        return False if telling.beside else None


def after(session: VerifySession, block: Judged, decision: Decision) -> Tensor | None:
    """The row [width] that is held, where no token follows the accepted ones."""
    if block.states is None or session.telling is None or decision.final_token is not None:
        return None
    return block.states[decision.leaf_row].clone()


def _emitted_rows(
    blocks: Sequence[Judged], decisions: Sequence[Decision | Exception]
) -> Iterator[tuple[int, Tensor]]:
    for block, decision in zip(blocks, decisions, strict=True):
        if block.states is not None and not isinstance(decision, Exception):
            rows = [0, *(node + 1 for node in decision.path)]
            count = len(decision.path) + (decision.final_token is not None)
            yield id(block), block.states[rows[:count]]
