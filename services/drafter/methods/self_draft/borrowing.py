"""Drafting from the K/V that the verifier in this thread lends.

Rules:

1.  A session begins with nothing: its verifier has, or will have, the text in K/V.
2.  It borrows once all of the verifier's text but the last token is in K/V, and anew where the
    verifier had to give that up meanwhile. Until then it waits.
3.  Whether there is an offer, and how long its text is, follows from what was judged; no token
    that was drafted and not judged takes part. So what is drafted keeps the law.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from services.drafter.protocol import Ask, Proposed, SessionKey
from services.engine.lending import Lending, Offer
from services.engine.port import KVCache, Loan, SelfDrafting


class Borrower(Protocol):
    """A session that drafts from K/V."""

    cache: KVCache
    caught_up: bool
    """Its prompt is in K/V."""


@dataclass(frozen=True, slots=True)
class _Borrowed:
    offer: Offer
    loan: Loan
    """Of that offer."""


class Borrowing:
    """The loans of a drafter's sessions, all on `engine`, which the verifier runs on, too."""

    def __init__(self, lending: Lending, engine: SelfDrafting) -> None:
        self._lending, self._engine = lending, engine
        self._borrowed: dict[SessionKey, _Borrowed] = {}

    def new_cache(self) -> KVCache:
        """A cache to begin with: something that has nothing, and room for nothing."""
        return self._engine.new_cache(1)

    def close(self, key: SessionKey) -> None:
        """Forget the session; the lender is told that nobody looks ahead."""
        if (own := self._borrowed.pop(key, None)) is not None:
            own.offer.look_ahead = ()

    def offer(self, key: SessionKey) -> Offer | None:
        """What the session borrows from now."""
        own = self._borrowed.get(key)
        return None if own is None else own.offer

    def held(self, ask: Ask, session: Borrower) -> Proposed | None:
        """See to the session's cache; an answer where nothing can be drafted now."""
        own = self._borrowed.get(ask.key)
        if own is None or own.offer.cache.freed:
            own = self._borrow(ask.key, session)
        if own is None or own.offer.cache.length < len(own.offer.text) - 1:
            return Proposed(waits=True)
        own.loan.adopt(own.offer.cache.length)
        return None

    def _borrow(self, key: SessionKey, session: Borrower) -> _Borrowed | None:
        offer = self._lending.find(key[1])
        if offer is None:
            return None
        session.cache.free()
        loan = self._engine.borrow(offer.cache)
        session.cache, session.caught_up = loan, False
        self._borrowed[key] = own = _Borrowed(offer, loan)
        return own
