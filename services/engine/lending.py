"""K/V that a verifier lends of its sessions to what drafts in its thread with the same weights.

Self-speculative decoding drafts from the whole model's K/V of the verified text
(Draft & Verify, Zhang et al., 2309.08168). A loan goes on from there without a copy:

    tokens   0 ........ verified ........ drafted ........ reserved
             | the lender's              | the loan's

Rules:

1.  One memory, two lengths. The loan writes behind the lender's text only; a loan
    that is shorter than its lender is refused a write.
2.  The lender writes wherever it verifies, over the loan's tokens, too. Mostly these
    are the same tokens, and now the whole model's K/V of them. Where they are not, the
    loan's text was given up, or soon is: a guess from wrong K/V is still only a guess.
3.  The lender's end is the loan's.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from torch import Tensor

from services.engine.port import KVCache


@dataclass(frozen=True, slots=True)
class Ahead:
    """Logits [L, V] of look-ahead rows behind a block that was accepted whole.

    Row i answers for the token i + 1 after a text of `length` tokens.
    """

    length: int
    logits: Tensor


@dataclass(slots=True, eq=False)
class Offer:
    """A verifier's session: its K/V and its text, prompt and output, as it grows.

    `look_ahead`: ids that whoever borrows wants fed behind each block, so that the
    verifier's own forward drafts, too; `ahead`: what the last one gave.
    """

    cache: KVCache
    text: Sequence[int]
    look_ahead: Sequence[int] = ()
    ahead: Ahead | None = None


class Lending:
    """What a verifier lends to whatever drafts in its process: the K/V of its sessions."""

    def __init__(self) -> None:
        self._offers: dict[Hashable, Offer] = {}

    def offer(self, session: Hashable, cache: KVCache, text: Sequence[int]) -> Offer:
        """Offer a session's K/V from now on, in place of an earlier one of that id."""
        self._offers[session] = offer = Offer(cache, text)
        return offer

    def withdraw(self, session: Hashable, offer: Offer) -> None:
        """Offer this one no more; another of the same id stays."""
        if self._offers.get(session) is offer:
            del self._offers[session]

    def find(self, session: Hashable) -> Offer | None:
        """What is offered of a session."""
        return self._offers.get(session)
