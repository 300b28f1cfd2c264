"""Drafts of the verifier's own: of a proposer in its process, asked before a step and between.

A proposer that fails costs its drafts, and nothing else: a session that asks for more than it has
is refused at its opening.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from services.contract.frames import DraftName, draft_key
from services.runtime.proposer import LocalAsk, LocalDraft, Proposer
from services.scheduling.offers import Pacing
from services.verifier.running.session import RunningSession

MOST_DRAFTS_HERE = 1 << 20
"""Drafts of the verifier's own in one opening, each of which has a key."""

_log = logging.getLogger(__name__)
T = TypeVar("T")


class OwnDrafts:
    """What is drafted here, if anything is."""

    def __init__(
        self, proposer: Proposer | None, pacing: Pacing, clock: Callable[[], float]
    ) -> None:
        self._proposer, self._pacing, self._clock = proposer, pacing, clock

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What is drafted here, as a worker says it of itself."""
        return () if self._proposer is None else self._proposer.capabilities

    @property
    def recalled_tokens(self) -> int:
        """How many tokens were drafted here so far from texts of other sessions."""
        return 0 if self._proposer is None else self._proposer.recalled_tokens

    def open(self, session: RunningSession) -> tuple[int, ...]:
        """Draft for a session that asks for it; the layers whose states are to be told of it.

        Raises what refuses the session.
        """
        opening, proposer = session.opening, self._proposer
        if not opening.method or proposer is None:
            return opening.state_layers
        proposer.open(session.key, opening)
        session.drafts_here = True
        return proposer.needed_states(opening.method).layers

    def close(self, session: RunningSession) -> None:
        """The session is gone."""
        if session.drafts_here and self._proposer is not None:
            self._guarded(partial(self._proposer.close, session.key), None)

    def propose(self, ready: Sequence[RunningSession]) -> None:
        """Draft for those that want it, and have no draft."""
        if self._proposer is None:
            return
        asking = [own for own in ready if own.drafts_here and not len(own.mailbox) and own.window]
        asking = [own for own in asking if self._pacing.window(own.key, own.window)]
        if not asking:
            return
        none = [LocalDraft()] * len(asking)
        asks = [_ask(own) for own in asking]
        drafts = self._guarded(partial(self._proposer.propose, asks), none)
        now = self._clock()
        for session, draft in zip(asking, drafts, strict=True):
            # Where nothing is drafted here, a drafter may have something yet.
            if len(draft.tree) or not session.drafted_for:
                session.mailbox.propose(draft, now)

    def ahead(self, sessions: Iterable[RunningSession]) -> bool:
        """No step can run now: draft ahead. Whether there was something to do."""
        if self._proposer is None:
            return False
        asks = [_ask(own) for own in sessions if own.drafts_here]
        return bool(asks) and self._guarded(partial(self._proposer.idle, asks), False)

    def anchor(self, session: RunningSession, position: int, states: bytes) -> None:
        """Take the states of a text; without them drafts get worse, no more."""
        assert self._proposer is not None
        self._guarded(partial(self._proposer.anchor, session.key, position, states), None)

    def _guarded(self, act: Callable[[], T], otherwise: T) -> T:
        try:
            return act()
        except Exception:
            _log.exception("no drafts of the verifier's own")
            return otherwise


def _ask(session: RunningSession) -> LocalAsk:
    opening = session.opening
    number = (session.steps + 1) % MOST_DRAFTS_HERE
    name = DraftName(0, opening.opening * MOST_DRAFTS_HERE + number)
    return LocalAsk(
        session.key,
        session.text,
        min(session.room, session.depth),
        session.window,
        session.told_rows,
        draft_key(opening.term, name),
    )
