"""How likely a drafted token is to stay, and so where a draft of a head ends.

A head's own probability of a token says a good deal of whether the target takes it, once the
tokens before it have been taken (EAGLE-2, Li et al., 2406.16858). Verdicts tell how much: of
each range of probabilities, hits among promises. The product along a path is the chance that all
of it stays, and with it what one more row brings, in tokens.

Rules:

1.  A draft ends before a token whose chance is below `least`, which is what its row costs. Who
    verifies it measures that better, but sees counts only; see `services.scheduling.draft_budget`.
2.  What a verdict did not get to, behind a rejection, taught nothing.
3.  Where drafts are drawn (STANDARD, BLOCK) none ends so: it has the length that was asked for. A
    token that is dropped for its own value was not drawn from the q that is sent. And a draft that
    ends for the tokens drawn so far, though before the next is drawn, is judged earlier than
    another one; where a process dies meanwhile, what was not judged is drawn again, and the early
    ones come too often. See `VerifyMode.exact_match`, and `tests/proof` for both. What is emitted
    where drafts are matched exactly (GREEDY, COUPLED) is the target's choice, whatever was drafted.
"""

from __future__ import annotations

from services.scheduling.tree_budget import EDGES, range_of

TRUST = 6.0
"""Tokens of a range that the head is believed for before there is anything to go by."""
KEEP = 0.995
"""Weight of what was seen one token ago."""


class Chances:
    """What a head's probabilities are worth; `least`: see the rules. 0: no draft ends by it."""

    def __init__(self, least: float) -> None:
        self.least = least
        self._hits = [TRUST] * (len(EDGES) + 1)
        self._promised = [TRUST] * (len(EDGES) + 1)

    def believed(self, probability: float) -> float:
        """The chance that a token stays, if all before it do."""
        place = range_of(probability)
        return min(1.0, probability * self._hits[place] / self._promised[place])

    def observe(self, probability: float, *, hit: bool) -> None:
        """The target took the token, or another one, where all before it had been taken."""
        place = range_of(probability)
        self._hits[place] = KEEP * self._hits[place] + hit
        self._promised[place] = KEEP * self._promised[place] + probability
