"""From the logits of a step to texts that have grown, and a frame a link that says so.

What a step decided leaves before anything of its session can fail.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from services.contract.frames import StepFrame, StepRow, step_frame
from services.contract.states import Fate
from services.engine.lending import Ahead
from services.engine.structure import StructureError
from services.verifier.options import VerifierOptions
from services.verifier.running.deciding import decide_turns
from services.verifier.running.drafting import Drafting
from services.verifier.running.own_drafts import OwnDrafts
from services.verifier.running.session import RunningSession
from services.verifier.running.sessions import Emit, Sessions
from services.verifier.running.telling import (
    logprobs,
    said,
    state_rows,
    step_row,
    top_rows,
)
from services.verifier.running.turns import Decided, Turn


class Brought(NamedTuple):
    """What a step brought: rows by link, and those who fail behind them."""

    rows: dict[int, list[tuple[RunningSession, StepRow]]]
    failed: list[tuple[RunningSession, Exception]]


class Outcome:
    """Absorbs what a forward computed. `rounding`: see `judging.walks`."""

    def __init__(
        self,
        sessions: Sessions,
        drafting: Drafting,
        own_drafts: OwnDrafts,
        emit: Emit,
        rounding: float,
        options: VerifierOptions,
    ) -> None:
        self._sessions, self._drafting, self._own_drafts = sessions, drafting, own_drafts
        self._emit, self._rounding = emit, rounding
        self._clock, self._on_choices = options.clock, options.on_choices

    # --- texts grow -------------------------------------------------------------------

    def grow(self, turns: Sequence[Turn], started: float) -> Brought:
        """Let the texts of these turns grow; nothing is told yet. `started`: of the step."""
        decisions = self._decide(turns)
        spoken = [
            said(turn, decided) if isinstance(decided, Decided) else ()
            for turn, decided in zip(turns, decisions, strict=True)
        ]
        states, now = self._state_rows(turns, decisions, spoken), self._clock()
        brought = Brought(defaultdict(list), [])
        for turn, decided, tokens in zip(turns, decisions, spoken, strict=True):
            session = turn.session
            if not isinstance(decided, Decided):
                brought.failed.append((session, decided))
                continue
            row = step_row(turn, decided, tokens, started)
            try:
                row = self._with_rare_parts(turn, decided, row, states.get(session, b""))
                self._take_in(turn, decided, row, now)
            except Exception as error:
                brought.failed.append((session, error))
            brought.rows[session.key[0]].append((session, row))
        return brought

    def _decide(self, turns: Sequence[Turn]) -> Sequence[Decided | Exception]:
        """The decisions for all turns together or, if that fails, for each alone."""
        try:
            return self._sessions.spared(partial(decide_turns, turns, self._rounding))
        except Exception as error:
            if len(turns) == 1:
                return [error]
        return [decision for turn in turns for decision in self._decide([turn])]

    def _take_in(self, turn: Turn, decided: Decided, row: StepRow, now: float) -> None:
        """The text grows by what was said, and K/V, form and counts follow it."""
        session, tokens = turn.session, row.tokens
        box = session.mailbox
        held, name = len(box), box.name
        if turn.tree.parents is not None:
            kept = [node + 1 for node in decided.path if node < len(turn.tree)]
            self._sessions.spared(partial(session.cache.keep_path, turn.last, (0, *kept)))
        session.grew(tokens, now)
        self._drafting.dropped.followed(held, name, row, box)
        session.steps += 1
        session.cache.rollback(len(session.text) - 1)
        if session.telling is not None:
            session.telling.told = len(session.text) - 1
        if session.offer is not None:
            whole = len(tokens) == len(turn.tree) + 1
            session.offer.ahead = None
            if turn.ahead is not None and whole:
                session.offer.ahead = Ahead(len(session.text), turn.ahead)
        if session.history is not None:
            session.history.extend(tokens)
        self._learn(turn, row)
        if session.matcher is not None and not session.matcher.extend(tokens):
            raise StructureError("a token was accepted that the form does not allow")

    def _learn(self, turn: Turn, row: StepRow) -> None:
        """Tell policy and counters what became of a draft."""
        self._drafting.learn(turn, row)
        mode = turn.session.opening.mode
        if self._on_choices is not None and mode.exact_match:
            self._on_choices(mode.name.lower(), len(row.tokens), row.near_ties)

    # --- what few ask for -------------------------------------------------------------

    def _with_rare_parts(
        self, turn: Turn, decided: Decided, row: StepRow, states: bytes
    ) -> StepRow:
        session = turn.session
        session.told_rows = self._sessions.spared(partial(top_rows, turn))
        if session.opening.sampling.logprobs is not None:
            own = self._sessions.spared(partial(logprobs, turn, decided, row.tokens))
            row = row._replace(logprobs=own)
        if session.told_rows:
            row = row._replace(top_rows=session.told_rows)
        if states and session.drafts_here:
            self._own_drafts.anchor(session, turn.last, states)
        elif states:
            row = row._replace(states=states)
        return row

    def _state_rows(
        self,
        turns: Sequence[Turn],
        decisions: Sequence[Decided | Exception],
        spoken: Sequence[tuple[int, ...]],
    ) -> dict[RunningSession, bytes]:
        """The states before each token that was said, of all turns in one transfer."""
        told = (
            (turn.session, turn.states[state_rows(turn, decided, len(tokens))])
            for turn, decided, tokens in zip(turns, decisions, spoken, strict=True)
            if turn.states is not None and isinstance(decided, Decided)
        )
        rows = self._sessions.states.in_one(told)
        for own in rows.values():
            self._sessions.states.count(Fate.SENT, own)
        return rows

    # --- they are told of -------------------------------------------------------------

    def tell(
        self, frame: StepFrame, brought: Brought, stood: Mapping[int, tuple[int, ...]]
    ) -> None:
        """A frame a link, with how far its drafters are to be ahead; then who has failed.

        `stood`: by link, how many sessions took no part, by reason.
        """
        for link, rows in brought.rows.items():
            windows = self._drafting.windows([session for session, _ in rows])
            bare = replace(frame, stood_out=stood.get(link, ()))
            self._emit(link, step_frame(bare, [row for _, row in rows], windows))
        for session, error in brought.failed:
            self._sessions.fail(session, error)
