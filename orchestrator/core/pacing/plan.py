"""How many draft tokens a round should hold, from what was learned. Pure.

When its verifier becomes free, a session has m draft tokens ready. It sends k <= m of
them, or waits for another one. A round of k tokens brings E[tokens](k) = 1 + a_1 +
a_1 a_2 + ... (Leviathan et al. 2023, eq. 1, with a rate for the first token and one for
those after it). If all k are accepted and the drafter has the token after them, the
session is *warm* afterwards: it keeps the tokens that were ready beyond k or drafted during
the round. Else it is *cold*: the drafts are void, and the drafter starts anew.
Tokens per millisecond over many rounds are greatest where every choice maximises

    E[tokens](k) - rate * time + P[warm](k) * worth(tokens ready then),

where `rate` is the overall tokens per millisecond, and the `worth` of a state its lead in
tokens over a cold one: a semi-Markov decision process, solved by relative value iteration
(Puterman 1994, sections 8.5 and 11.4) that starts from the previous plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from orchestrator.core.pacing.learned import Learned

# Longer blocks are ignored once they are fully accepted less often than this.
RARE = 0.01
FIRST_SWEEPS = 9
SWEEPS = 3
DRAWN_SWEEPS = 2

Worths = tuple[float, ...]


class Round(NamedTuple):
    """A round of k draft tokens."""

    # Tokens that it brings, less those that its time is worth.
    gain: float
    # The chance of a warm start, and the ready tokens that it has used up and gained.
    chance: float
    used: int
    drafted: float


class Start(NamedTuple):
    """What m = 0, 1, ... ready tokens are worth after one kind of start, and what is best then."""

    worths: Worths
    # Draft tokens to send, and whether to wait for another one instead.
    sends: tuple[int, ...]
    waits: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Brings:
    """What a round of k = 0, 1, ... draft tokens brings: tokens, and chance of a warm start."""

    tokens: tuple[float, ...]
    warm: tuple[float, ...]


def expected(learned: Learned, most: int) -> Brings:
    """For k = 0 .. `most`, or up to where full acceptance gets rare.

    Without exact matching a fully accepted block ends without a bonus token: its last
    draft token brings only the chance to go on.
    """
    first, later, exact = learned.first_rate, learned.later_rate, learned.exact
    tokens, warm = [1.0], [learned.guess_rate]
    reach, total = 1.0, 1.0
    for k in range(1, most + 1):
        reach *= first if k == 1 else later
        tokens.append(total + reach if exact else total)
        warm.append(reach * (later if exact else 1.0))
        total += reach
        if reach < RARE:
            break
    return Brings(tuple(tokens), tuple(warm))


@dataclass(frozen=True, slots=True)
class PacingPlan:
    """The expected rate, the best action in every state, and the inputs of both.

    `cold_ms`, `warm_ms`: milliseconds of a round of k = 0, 1, ... draft tokens after a
    cold and after a warm start. The actions are those of the last sweep, and hold for
    all rounds of the plan.
    """

    learned: Learned
    brings: Brings
    cold_ms: tuple[float, ...]
    warm_ms: tuple[float, ...]
    rate: float
    warm: Start
    cold: Start

    @property
    def most(self) -> int:
        """Most tokens that can be ready at a time."""
        return len(self.warm.worths) - 1

    def imagined(self, learned: Learned) -> PacingPlan:
        """The plan if drafts hit as often as `learned` has it."""
        plan = replace(self, brings=expected(learned, self.most))
        for _ in range(DRAWN_SWEEPS):
            plan = plan.swept()
        return plan

    def best(self, ready: int, *, warm: bool = True) -> int:
        """The best number of draft tokens to send of those that are `ready`."""
        return (self.warm if warm else self.cold).sends[min(ready, self.most)]

    def waits(self, ready: int, *, warm: bool = True) -> bool:
        """Whether another token is worth waiting for."""
        return ready < self.most and (self.warm if warm else self.cold).waits[ready]

    def swept(self) -> PacingPlan:
        """One sweep of value iteration over all states, relative to the cold one."""
        sent = self._sent(self.warm_ms)
        warm = self._start(sent, 0.0)
        if self.cold_ms is not self.warm_ms:
            sent = self._sent(self.cold_ms)
        cold = self._start(sent, self.learned.hop_ms)
        gain = cold.worths[0]
        return PacingPlan(
            self.learned,
            self.brings,
            self.cold_ms,
            self.warm_ms,
            max(self.rate + gain / self.cold_ms[0], 0.1 * self.rate),
            warm._replace(worths=tuple([worth - gain for worth in warm.worths])),
            cold._replace(worths=tuple([worth - gain for worth in cold.worths])),
        )

    def _sent(self, times: tuple[float, ...]) -> list[tuple[float, int]]:
        """The worth of m = 0, 1, ... ready tokens if the best block is sent at once."""
        rounds, worths = self._rounds(times), self.warm.worths
        return [_best(rounds[: ready + 1], worths, ready) for ready in range(len(worths))]

    def _rounds(self, times: tuple[float, ...]) -> list[Round]:
        """What a round of k = 0, 1, ... draft tokens brings, at the overall rate."""
        tokens, chances, draft_ms = self.brings.tokens, self.brings.warm, self.learned.draft_ms
        gains = [gain - self.rate * times[k] for k, gain in enumerate(tokens)]
        if not draft_ms:
            return [Round(gain, 0.0, k, 0.0) for k, gain in enumerate(gains)]
        exact = self.learned.exact
        return [
            Round(gain, chances[k], k + (exact or not k), times[k] / draft_ms)
            for k, gain in enumerate(gains)
        ]

    def _start(self, sent: list[tuple[float, int]], hop_ms: float) -> Start:
        """The same if the session may also wait for a token, from most ready tokens down.

        `hop_ms`: the extra delay of the first token.
        """
        worths, waits = [worth for worth, _ in sent], [False] * len(sent)
        token_cost = self.rate * self.learned.draft_ms
        late_cost = self.rate * self.learned.costs.late_ms
        for ready in range(self.most - 1, -1, -1) if token_cost else ():
            waiting = worths[ready + 1] - token_cost - (0.0 if ready else self.rate * hop_ms)
            waiting -= late_cost
            if waiting > worths[ready]:
                worths[ready], waits[ready] = waiting, True
        return Start(tuple(worths), tuple([k for _, k in sent]), tuple(waits))

    def ahead(self) -> int:
        """Most tokens that a drafter needs to be ahead of the committed text.

        Twice the longest block worth sending, one under way and one behind it, and the
        tokens drafted while messages travel.
        """
        travelling = self.learned.hop_ms / self.learned.draft_ms if self.learned.draft_ms else 0.0
        return 2 * self.best(self.most) + 2 + math.ceil(travelling)

    def wait(self, count: int) -> float:
        """Milliseconds until `count` tokens are ready after a cold start."""
        return self.learned.hop_ms + count * self.learned.draft_ms


def _best(rounds: list[Round], worths: Worths, ready: int) -> tuple[float, int]:
    """The worth of the best round with `ready` tokens, and its k.

    `worths`: of a warm start with 0, 1, ... ready tokens; fractions of a token count as a
    part. More tokens are never worth less, so a round that would not be best even with the
    most of them is skipped.
    """
    chosen, greatest = 0, -math.inf
    last, highest = len(worths) - 1, max(0.0, worths[-1])
    for k, (gain, chance, used, drafted) in enumerate(rounds):
        if gain + chance * highest <= greatest:
            continue
        left = ready - used + drafted
        if left >= last:
            after = worths[last]
        elif left <= 0.0:
            after = worths[0] * max(0.0, 1.0 + left)
        else:
            whole = int(left)
            after = worths[whole] + (left - whole) * (worths[whole + 1] - worths[whole])
        worth = gain + chance * after
        if worth > greatest:
            chosen, greatest = k, worth
    return greatest, chosen


def make_plan(
    learned: Learned, window: int, before: PacingPlan | None, *, chained: bool
) -> PacingPlan | None:
    """The plan from current knowledge, improved from the last one; None while nothing is known.

    `chained`: after a warm start the session waits for no round trip.
    """
    if not learned.costs.known:
        return None
    costs = learned.costs
    cold_ms = tuple([costs.round_ms(k) for k in range(window + 1)])
    warm_ms = tuple([ms - costs.transit_ms for ms in cold_ms]) if chained else cold_ms
    brings = expected(learned, window)
    if before is None:
        states = window + 1
        nothing = Start((0.0,) * states, (0,) * states, (False,) * states)
        plan = PacingPlan(learned, brings, cold_ms, warm_ms, 1.0 / cold_ms[0], nothing, nothing)
    else:
        plan = replace(before, learned=learned, brings=brings, cold_ms=cold_ms, warm_ms=warm_ms)
    for _ in range(SWEEPS if before else FIRST_SWEEPS):
        plan = plan.swept()
    return plan
