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
from typing import NamedTuple

from orchestrator.core.pacing.learned import Learned

# Longer blocks are ignored once they are fully accepted less often than this.
RARE = 0.01
FIRST_SWEEPS = 9
SWEEPS = 3
DRAWN_SWEEPS = 2

Worths = tuple[float, ...]


Move = tuple[float, float, float, int, float]
"""A round of k draft tokens: what it brings, the chance of a warm start, its time, `step`, `part`.

After a warm start as many tokens are ready as before, `step` more (less than none: fewer),
and the share `part` of another one: what was drafted meanwhile less what was used up.
"""


class Start(NamedTuple):
    """What m = 0, 1, ... ready tokens are worth after one kind of start, and what is best then."""

    worths: Worths
    # Draft tokens to send, and whether to wait for another one instead.
    sends: tuple[int, ...]
    waits: tuple[bool, ...]


class Brings(NamedTuple):
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


class PacingPlan(NamedTuple):
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
        return self._replace(brings=expected(learned, self.most)).swept(DRAWN_SWEEPS)

    def best(self, ready: int, *, warm: bool = True) -> int:
        """The best number of draft tokens to send of those that are `ready`."""
        return (self.warm if warm else self.cold).sends[min(ready, self.most)]

    def waits(self, ready: int, *, warm: bool = True) -> bool:
        """Whether another token is worth waiting for."""
        return ready < self.most and (self.warm if warm else self.cold).waits[ready]

    def swept(self, sweeps: int = 1) -> PacingPlan:
        """Sweeps of value iteration over all states, relative to the cold one."""
        same = self.cold_ms is self.warm_ms
        warm_moves = self._moves(self.warm_ms)
        cold_moves = warm_moves if same else self._moves(self.cold_ms)
        draft_ms, hop_ms = self.learned.draft_ms, self.learned.hop_ms
        late_ms, plain_ms = self.learned.costs.late_ms, self.cold_ms[0]
        rate, warm, cold = self.rate, self.warm, self.cold
        for _ in range(sweeps):
            stairs = _stairs(warm.worths)
            warm_worths, warm_sends = _sent(warm_moves, rate, stairs)
            cold_worths, cold_sends = warm_worths, warm_sends
            if not same:
                cold_worths, cold_sends = _sent(cold_moves, rate, stairs)
            wait = rate * (draft_ms + late_ms) if draft_ms else math.inf
            warm_worths, warm_waits = _waited(warm_worths, wait, 0.0)
            cold_worths, cold_waits = _waited(cold_worths, wait, rate * hop_ms)
            gain = cold_worths[0]
            warm = Start(tuple([one - gain for one in warm_worths]), warm_sends, warm_waits)
            cold = Start(tuple([one - gain for one in cold_worths]), cold_sends, cold_waits)
            rate = max(rate + gain / plain_ms, 0.1 * rate)
        return PacingPlan(self.learned, self.brings, self.cold_ms, self.warm_ms, rate, warm, cold)

    def _moves(self, times: tuple[float, ...]) -> list[Move]:
        """Rounds of k = 0, 1, ... draft tokens."""
        tokens, chances = self.brings
        draft_ms, exact, most = self.learned.draft_ms, self.learned.exact, self.most
        if not draft_ms:
            return [(one, 0.0, times[k], 0, 0.0) for k, one in enumerate(tokens)]
        moves = []
        for k, one in enumerate(tokens):
            more = times[k] / draft_ms - k - (exact or not k)
            step = math.floor(more)
            whole = step >= most
            moves.append(
                (one, chances[k], times[k], most if whole else step, 0.0 if whole else more - step)
            )
        return moves

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


def _stairs(worths: Worths) -> list[float]:
    """The worths of -1, 0, 1, ... ready tokens: nothing below, and beyond those of the most."""
    return [0.0, *worths, *(worths[-1:] * (len(worths) + 1))]


def _sent(
    moves: list[Move], rate: float, stairs: list[float]
) -> tuple[list[float], tuple[int, ...]]:
    """The worth of m = 0, 1, ... ready tokens if the best round begins at once, and its k.

    `stairs`: of a warm start; fractions of a token count as a part. More tokens are never
    worth less, so a round that would not be best even with the most of them is skipped.
    """
    states, highest = len(stairs) // 2 - 1, max(0.0, stairs[-1])
    worths, chosen = [-math.inf] * states, [0] * states
    for k, (tokens, chance, ms, step, part) in enumerate(moves):
        gain = tokens - rate * ms
        if gain + chance * highest <= worths[k]:
            continue
        place = k + step + 1
        if place >= states:
            # Then all are ready, however many were before.
            worth = gain + chance * stairs[-1]
            for ready in range(k, states):
                if worth > worths[ready]:
                    worths[ready], chosen[ready] = worth, k
            continue
        low = stairs[place]
        for ready in range(k, states):
            place += 1
            high = stairs[place]
            worth = gain + chance * (low + part * (high - low))
            low = high
            if worth > worths[ready]:
                worths[ready], chosen[ready] = worth, k
    return worths, tuple(chosen)


def _waited(sent: list[float], wait: float, first: float) -> tuple[list[float], tuple[bool, ...]]:
    """The same if the session may also wait for a token, from most ready tokens down.

    `wait`: what the wait costs, in tokens; `first`: how much more for the first token.
    """
    worths, waits = [*sent], [False] * len(sent)
    for ready in range(len(sent) - 2, -1, -1):
        waiting = worths[ready + 1] - wait - (0.0 if ready else first)
        if waiting > worths[ready]:
            worths[ready], waits[ready] = waiting, True
    return worths, tuple(waits)


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
        plan = PacingPlan(learned, brings, cold_ms, warm_ms, before.rate, before.warm, before.cold)
    return plan.swept(SWEEPS if before else FIRST_SWEEPS)
