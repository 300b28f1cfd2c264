"""Drafting methods in the process and the thread of the verifier that judges their drafts.

Asked before a step, a method drafts from the verifier's own text: chains level by level to their
end or to the window, a tree until it is grown. What it drafted is text for it alone, and only until
it is asked again. So there are no messages and no names, and no text is ever out of step.

Rules:

1.  A draft is of the text that the verifier has when it asks. Of the last one nothing is left but
    what the method keeps for itself: of K/V what the text bears out.
2.  Each draft has a key of its own, which its draws are made with.
3.  A prompt that a method reads, and what waits for something else, ends its draft of this step.
4.  What fails for a session ends its drafts, and not the session.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from services.contract.errors import InvalidRequest
from services.contract.states import NO_STATES, OnStates, StateRows, StateShape
from services.contract.types import Role, WorkerDescription, local_capability
from services.contract.worker_messages import StartDraft, StartVerify
from services.drafter.anchors import Anchors, shape_of
from services.drafter.asking import by_drafter, idle, propose_each
from services.drafter.combined import Methods
from services.drafter.hypotheses.core import opened
from services.drafter.hypotheses.session import HypothesisSession
from services.drafter.protocol import Ask, Drafter, Proposed, SessionKey, states_needed
from services.drafter.refusals import check_open
from services.runtime.proposer import LocalAsk, LocalDraft
from services.runtime.step_records import OnStep, StepEntry, StepRecord

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Local:
    """A session of the verifier, and its text as the method is to see it."""

    key: SessionKey
    session: HypothesisSession
    drafter: Drafter
    session_id: str
    traceparent: str
    branches: bool
    """Drafts may be trees."""
    states: list[StateRows] = field(default_factory=list)
    """Of text that the method was not told of yet."""
    draft_key: int = 0
    drafting: bool = False
    failed: bool = False


class LocalProposer:
    """A `Proposer` of the verifier that drafts with these methods; see the rules.

    `drafters`: by name. `lengthen`: for several methods (see `combined`). `on_step` is told of
    every call of a method, `on_states` of the target's states. `clock` is in nanoseconds. Raises
    StartError for methods that need different states.
    """

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        *,
        lengthen: int = 0,
        on_step: OnStep | None = None,
        on_states: OnStates | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._methods = Methods(drafters, lengthen)
        self._anchors = Anchors(shape_of(drafters.values()), on_states)
        self._on_step = on_step
        self._clock = clock
        self._sessions: dict[Hashable, _Local] = {}
        self._recalled = 0

    @property
    def recalled_tokens(self) -> int:
        """How many tokens were drafted so far from texts of other sessions."""
        return self._recalled

    @property
    def methods(self) -> frozenset[str]:
        """The methods, each alone."""
        return frozenset(self._methods.names)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """That these methods are here, and what they are able to."""
        own = WorkerDescription("", Role.DRAFTER)
        able = self._methods.describe(own, self._anchors.shape).capabilities
        return (*map(local_capability, self._methods.names), *able)

    def needed_states(self, method: str) -> StateShape:
        """The target's states that a method, or several joined by commas, drafts from."""
        drafter = self._methods.find(method)
        return NO_STATES if drafter is None else states_needed(drafter)

    # --- sessions -------------------------------------------------------------

    def open(self, key: Hashable, opening: StartVerify) -> None:
        """A session begins, or begins anew.

        Raises InvalidRequest where its method drafts nothing for it, and what the method raises.
        """
        self.close(key)
        if problem := self._methods.refusal(opening.method, opening.mode):
            raise InvalidRequest("method", opening.method, problem)
        start = _start(opening)
        session, drafter = HypothesisSession(start), self._methods.find(opening.method)
        assert drafter is not None
        told = opened(start)
        check_open(told)
        own = (0, key)
        drafter.open(own, told)
        branches = opening.num_candidates > 1 and drafter.trees
        self._sessions[key] = _Local(
            own, session, drafter, opening.session_id, opening.traceparent, branches
        )

    def close(self, key: Hashable) -> None:
        """A session is gone."""
        own = self._sessions.pop(key, None)
        if own is not None and not own.failed:
            self._forget(own)

    def anchor(self, key: Hashable, position: int, states: bytes) -> None:
        """The target's states at tokens of a text, prompt and output, from `position` on."""
        own, rows = self._sessions.get(key), StateRows(position, states)
        if own is None or own.failed:
            self._anchors.drop(rows)
        elif self._anchors.give(own.key, own.session, own.drafter, rows) is None:
            own.states.append(rows)

    # --- drafts ---------------------------------------------------------------

    def propose(self, asks: Sequence[LocalAsk]) -> list[LocalDraft]:
        """A draft of each text; an empty one where nothing can be drafted."""
        asked = [(ask, self._sessions[ask.key]) for ask in asks]
        for ask, own in asked:
            if not own.failed:
                self._follow(own, ask)
        going = [own for _, own in asked if own.drafting]
        # No draft takes more levels than it may be deep, but for one that finds its end.
        for _ in range(1 + max([ask.room for ask in asks], default=0)):
            if not going:
                break
            for drafter, group in by_drafter(going):
                self._level(drafter, group)
            going = [own for own in going if own.drafting and own.session.due]
        return [_drafted(own, ask) for ask, own in asked]

    def idle(self, asks: Sequence[LocalAsk]) -> bool:
        """Let methods use a moment in which no step can run."""
        asked = [(ask, self._sessions[ask.key]) for ask in asks]
        sound = [own for _, own in asked if not own.failed]
        for ask, own in asked:
            if not own.failed:
                self._follow(own, ask)
        return any(idle(drafter, map(_ask, group)) for drafter, group in by_drafter(sound))

    def _follow(self, own: _Local, ask: LocalAsk) -> None:
        """Take in the text as it is now; nothing of the last draft stays."""
        session, before = own.session, len(own.session.text)
        fresh = ask.text[session.prompt_length + session.committed_length :]
        kept = session.take(session.committed_length, fresh) if fresh else before
        assert kept is not None
        if session.tail_length or not fresh:
            kept = min(kept, session.give_up())
        if kept < before:
            own.drafter.rewind(own.key, kept)
        waiting, own.states = own.states, []
        for rows in waiting:
            self._anchors.give(own.key, session, own.drafter, rows)
        session.set_window(ask.room if own.branches else min(ask.room, ask.nodes))
        session.top_rows, own.draft_key = ask.top_rows, ask.draft_key
        own.drafting = session.due

    def _level(self, drafter: Drafter, going: Sequence[_Local]) -> None:
        """One call of a method."""
        started = self._clock()
        proposals = propose_each(drafter, list(map(_ask, going)), self._fail)
        elapsed = self._clock() - started
        served = []
        for own, proposed in zip(going, proposals, strict=True):
            if proposed is None:
                continue
            self._recalled += proposed.recalled
            own.session.absorb(proposed, elapsed / 1e6)
            own.drafting = not (proposed.waits or proposed.fed)
            if not proposed.waits:
                served.append((own, proposed))
        self._trace(elapsed, served)

    def _fail(self, ask: Ask, error: Exception) -> None:
        own = self._sessions[ask.key[1]]
        _log.error("a method drafts no more for a session", exc_info=error)
        own.failed, own.drafting = True, False
        self._forget(own)

    @staticmethod
    def _forget(own: _Local) -> None:
        try:
            own.drafter.close(own.key)
        except Exception:
            _log.exception("closing a session at its method failed")

    def _trace(self, elapsed_ns: int, served: Sequence[tuple[_Local, Proposed]]) -> None:
        if self._on_step is not None and served:
            ended = time.time_ns()
            entries = tuple([_step_entry(own, proposed) for own, proposed in served])
            self._on_step(StepRecord(ended - elapsed_ns, ended, entries))


def _start(opening: StartVerify) -> StartDraft:
    """What a drafter would have been told of the session."""
    return StartDraft(
        handle=opening.handle,
        opening=opening.opening,
        session_id=opening.session_id,
        term=opening.term,
        prompt=opening.prompt,
        output=opening.output,
        mode=opening.mode,
        sampling=opening.sampling,
        seed=opening.seed,
        window=0,
        num_candidates=opening.num_candidates,
        method=opening.method,
        traceparent=opening.traceparent,
        phrase_scope=opening.phrase_scope,
        top_rows=opening.top_rows,
        fork_scope=opening.fork_scope,
    )


def _ask(own: _Local) -> Ask:
    session = own.session
    return Ask(
        own.key,
        own.draft_key,
        session.text,
        session.prompt_length,
        session.prompt_length + session.committed_length,
        session.room,
        session.top_rows,
    )


def _drafted(own: _Local, ask: LocalAsk) -> LocalDraft:
    """What the last levels brought, of a tree without laws as many nodes as may be."""
    row = None if own.failed else own.session.taken()
    if row is None:
        return LocalDraft()
    tree, reach, sources = row.tree, row.reach, row.sources
    if tree.q is None and len(tree) > ask.nodes:
        tree, reach, sources = tree.first(ask.nodes), reach[: ask.nodes], sources[: ask.nodes]
    return LocalDraft(tree, reach, sources, row.draft_ms)


def _step_entry(own: _Local, proposed: Proposed) -> StepEntry:
    kind, tokens = ("prefill", proposed.fed) if proposed.fed else ("draft", len(proposed.tree))
    return StepEntry(own.session_id, kind, tokens, traceparent=own.traceparent)
