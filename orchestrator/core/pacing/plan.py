"""How many draft tokens a round should hold, from what was learned. Pure.

A session is in one of two states when its verifier becomes free. *Cold*: what was
drafted is void, and the drafter starts anew. *Warm*: the drafter was right to the
end of the last block, so that what it drafted meanwhile is there already. A round
of k draft tokens brings E[tokens](k) = 1 + a_1 + a_1 a_2 + ... (Leviathan et al.
2023, eq. 1, with a rate for the first token and one for those after it) and makes
the next one warm if all k are accepted and the drafter has the token after them.
Tokens per millisecond over many rounds are greatest where every choice maximises

    E[tokens](k) + head_start * P[warm](k) - rate * (wait(k) + round(k)),

with `rate` the tokens per millisecond of the whole and `head_start` what being
warm is worth in tokens: a semi-Markov decision process of two states, solved by
policy iteration (Puterman 1994, section 11.4), one step a round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.core.pacing.learned import Learned

# Drafts that get through less often than this are not worth reckoning with.
RARE = 0.01
# Ready tokens that are reckoned with after a round while no draft was timed.
SOME_READY = 4


@dataclass(frozen=True, slots=True)
class Brings:
    """What a round of k = 0, 1, ... draft tokens brings: tokens, and chance of a warm start."""

    tokens: tuple[float, ...]
    warm: tuple[float, ...]


def expected(learned: Learned, most: int) -> Brings:
    """For k = 0 .. `most`, or fewer where whole blocks get rare.

    No start is warm where a round is too short to draft ahead in.
    Without exact matching, a block that is accepted whole ends without a token of
    the target's own: its last draft token brings the chance to go on, and no more.
    """
    first, later, exact = learned.first_rate, learned.later_rate, learned.exact
    ahead = float(ready_after(learned, most) > 0)
    tokens, warm = [1.0], [ahead * learned.guess_rate]
    reach, total = 1.0, 1.0
    for k in range(1, most + 1):
        reach *= first if k == 1 else later
        tokens.append(total + reach if exact else total)
        warm.append(ahead * reach * (later if exact else 1.0))
        total += reach
        if reach < RARE:
            break
    return Brings(tuple(tokens), tuple(warm))


@dataclass(frozen=True, slots=True)
class Plan:
    """The rate that is to be expected, the worth of a head start, and what they rest on.

    `round_ms`: milliseconds of a round of k = 0, 1, ... draft tokens.
    """

    learned: Learned
    brings: Brings
    round_ms: tuple[float, ...]
    rate: float
    head_start: float

    def best(self, ready: int, most: int) -> int:
        """The best number of draft tokens with `ready` there; what is beyond is waited for."""
        rate, head_start, brings = self.rate, self.head_start, self.brings
        chosen, greatest = 0, -math.inf
        for k in range(min(most, self.reach(ready)) + 1):
            cost = self.round_ms[k] if k <= ready else self.milliseconds(k, ready)
            worth = brings.tokens[k] + head_start * brings.warm[k] - rate * cost
            if worth > greatest:
                chosen, greatest = k, worth
        return chosen

    def milliseconds(self, k: int, ready: int) -> float:
        """Wait and round for k tokens with `ready` there."""
        return self.wait(k, ready) + self.round_ms[k]

    def wait(self, k: int, ready: int) -> float:
        """Milliseconds until k tokens are there, with `ready` there now."""
        if k <= ready:
            return 0.0
        hop = 0.0 if ready else self.learned.hop_ms
        return hop + (k - ready) * self.learned.draft_ms

    def improved(self) -> Plan:
        """The rate and the head start of the best choices under this plan."""
        tokens, chance = self.brings.tokens, self.brings.warm
        ready = ready_after(self.learned, len(tokens) - 1)
        cold, warm = self.best(0, len(tokens)), self.best(ready, len(tokens))
        cold_ms, warm_ms = self.milliseconds(cold, 0), self.milliseconds(warm, ready)
        often = chance[cold] / (1.0 - chance[warm] + chance[cold])
        brought = (1.0 - often) * tokens[cold] + often * tokens[warm]
        rate = brought / ((1.0 - often) * cold_ms + often * warm_ms)
        head_start = (tokens[warm] - rate * warm_ms) / (1.0 - chance[warm])
        return Plan(self.learned, self.brings, self.round_ms, rate, max(0.0, head_start))

    def reach(self, ready: int) -> int:
        """Most tokens a round can hold: of what was never timed, one that is there."""
        return len(self.brings.tokens) - 1 if self.learned.draft_ms else min(ready, 1)


def ready_after(learned: Learned, window: int) -> int:
    """Tokens that are there after a plain round whose token the drafter had."""
    if not learned.draft_ms:
        return min(SOME_READY, window)
    drafted = (learned.line.at(0) - learned.hop_ms) / learned.draft_ms
    return max(0, min(window, int(drafted) - 1))


def make_plan(learned: Learned, window: int, before: Plan | None) -> Plan | None:
    """The plan after a round, a step better than the one before; None while nothing is known."""
    if learned.line.weight == 0.0:
        return None
    brings = expected(learned, window)
    round_ms = tuple(learned.line.at(k) for k in range(len(brings.tokens)))
    if before is None:
        return Plan(learned, brings, round_ms, 1.0 / round_ms[0], 0.0).improved().improved()
    return Plan(learned, brings, round_ms, before.rate, before.head_start).improved()
