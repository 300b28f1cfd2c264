"""Drafting from the K/V that a verifier in the same process lends.

Rules:

1.  A session begins with nothing: its verifier has, or will have, the text in K/V.
2.  A loan is used while it agrees with its lender, whose prompt is in K/V. What the
    lender has verified in the meantime, and the drafter was not told of yet, is waited
    for: the commit that tells it is on its way. Where the lender has K/V of all of the
    text, its next block brings a token at no cost, so none is drafted.
3.  Whether there is an offer, and how long its text is, follows from what was sent and
    judged; no token that was drafted and not sent takes part. So which drafts are sent
    keeps the law.
4.  Nobody offers although output was committed since the session came: its verifier
    is in another process. Then, and when a loan ends, the session gets K/V of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.contract.types import OpenDraft
from services.drafter.protocol import Ask, Proposed, SessionKey
from services.engine.lending import Lending, Offer
from services.engine.port import KVCache, Loan, SelfDrafting


class Borrower(Protocol):
    """A session that drafts from K/V."""

    cache: KVCache
    caught_up: bool
    """Its prompt is in K/V."""

    @property
    def unsent(self) -> Sequence[int]:
        """What was drafted and is not part of the text yet."""


@dataclass(slots=True)
class _State:
    prompt: tuple[int, ...]
    began: int
    """Length of the committed text when the session came."""
    reserve: int
    """Tokens of K/V of its own, if it comes to that."""
    offer: Offer | None = None
    loan: Loan | None = None
    """Of that offer."""
    alone: bool = False


class Borrowing:
    """The loans of a drafter's sessions, all on `engine`, which the verifier runs on, too."""

    def __init__(self, lending: Lending, engine: SelfDrafting) -> None:
        self._lending, self._engine = lending, engine
        self._states: dict[SessionKey, _State] = {}

    def open(self, key: SessionKey, opening: OpenDraft, reserve: int) -> KVCache:
        """A cache to begin with; `reserve` tokens are what it would take without a loan."""
        began = len(opening.prompt) + len(opening.output)
        # Something that has nothing, and room for nothing.
        cache = self._engine.new_cache(1)
        self._states[key] = _State(tuple(opening.prompt), began, reserve)
        return cache

    def close(self, key: SessionKey) -> None:
        """Forget the session; the lender is told that nobody looks ahead."""
        state = self._states.pop(key, None)
        if state is not None and state.offer is not None:
            state.offer.look_ahead = ()

    def offer(self, key: SessionKey) -> Offer | None:
        """What the session borrows from now."""
        return self._states[key].offer

    def held(self, ask: Ask, session: Borrower) -> Proposed | None:
        """See to the session's cache; an answer where nothing can be drafted now.

        Raises Overloaded where it needs K/V of its own and there is no room.
        """
        state = self._states[ask.key]
        if state.offer is None or state.offer.cache.freed:
            self._look(ask, state, session)
        if state.alone:
            return None
        if state.offer is None or not _agrees(state.offer, ask):
            return Proposed(waits=True)
        assert state.loan is not None
        state.loan.adopt(state.offer.cache.length)
        # What follows the lender's last token is the lender's own to say.
        all_verified = state.offer.cache.length == len(ask.text) + len(session.unsent)
        return Proposed(final=True) if all_verified else None

    def _look(self, ask: Ask, state: _State, session: Borrower) -> None:
        if state.alone:
            return
        lost = state.offer is not None
        state.offer = self._lending.find(ask.key[1], state.prompt)
        if state.offer is not None:
            state.loan = self._engine.borrow(state.offer.cache)
            self._give(session, state.loan)
        elif lost or ask.committed_length > state.began:
            self._give(session, self._engine.new_cache(state.reserve))
            state.alone = True

    @staticmethod
    def _give(session: Borrower, cache: KVCache) -> None:
        session.cache.free()
        session.cache, session.caught_up = cache, False


def _agrees(offer: Offer, ask: Ask) -> bool:
    """Whether the lender's prompt is in K/V, and all of its text is the drafter's text, too."""
    known = len(offer.text)
    return offer.cache.length >= known - 1 and list(ask.text[:known]) == offer.text
