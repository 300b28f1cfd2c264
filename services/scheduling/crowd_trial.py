"""Whether drafts pay a crowd, by the tokens that its sessions gain by time. Pure.

What a step takes does not tell that where tokens take more than steps. Where a drafter, an
orchestrator and clients share a verifier's cores, drafts may cost more between its steps than they
bring in them. So while many sessions are drafted for, both ways are tried in turns. The better one
is kept, and after a while both are tried again, ever more seldom.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST = 6
"""Sessions that are drafted for, from which they are a crowd."""
TURNS = 6
"""Of a trial: with drafts and without them, one after the other."""
TURN_S, TURN_STEPS = 0.2, 8
"""Of each session; a turn is as long as the longer of the two."""
SETTLING = 4
"""Steps of each session at a turn's begin, which do not count: drafts are late, or from before."""
FIRST_STAY_S, LONGEST_STAY_S = 4.0, 64.0
FIRST_TRIAL_S = 0.3
"""Behind which a new crowd's first trial begins."""
BETTER = 1.02
"""Times as many tokens by time, from which no drafts are the better way."""
ANOTHER, ANOTHER_S = 1.5, 1.0
"""Times as many sessions, and seconds for which they are, from which it is another crowd."""
LONGEST_STEP_S = 1.0
"""What took longer stood still for another reason."""


@dataclass(slots=True)
class _Sum:
    """Of all sessions: their steps, and the tokens and seconds of these."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self.steps += 1
        self.tokens += tokens
        self.seconds += seconds

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


class CrowdTrial:
    """Of all the sessions of a verifier that are drafted for."""

    def __init__(self) -> None:
        self.drafts = True
        """Whether drafts are to be made now."""
        self._crowd = 0
        """How many sessions both ways were, or are, tried with."""
        self._another_s = 0.0
        """For how long there have been many more or fewer."""
        self._stay_s = FIRST_STAY_S
        self._way = _Sum()
        """Since drafts began or stopped."""
        self._counted = (_Sum(), _Sum())
        """Of the trial: without drafts, and with them."""
        self._turns = 0
        """That are left of the trial; 0 = the better way is kept."""
        self._wait_s = FIRST_TRIAL_S
        """How long it is kept."""

    def advanced(self, sessions: int, tokens: int, seconds: float) -> None:
        """A step brought one of so many sessions so many tokens, so long after the one before."""
        if not self._known(sessions, seconds) or sessions < LEAST or seconds > LONGEST_STEP_S:
            return
        if self._turns and self._way.steps >= SETTLING * sessions:
            self._counted[self.drafts].add(tokens, seconds)
        self._way.add(tokens, seconds)
        if self._turns:
            enough = self._way.steps >= (SETTLING + TURN_STEPS) * sessions
            if enough and self._way.seconds >= TURN_S * sessions:
                self._turn()
        elif self._way.seconds >= self._wait_s * sessions:
            self._counted, self._turns = (_Sum(), _Sum()), TURNS
            self._choose(drafts=True)

    def _known(self, sessions: int, seconds: float) -> bool:
        """Whether it is the crowd that both ways are tried with; another one is, from now on."""
        if self._crowd / ANOTHER <= sessions <= self._crowd * ANOTHER:
            self._another_s = 0.0
            return True
        self._another_s += min(seconds, LONGEST_STEP_S) / sessions
        if self._crowd and self._another_s < ANOTHER_S:
            return False
        self._meet(sessions)
        return True

    def _meet(self, sessions: int) -> None:
        """What was found out was of another crowd."""
        self._crowd, self._turns, self._another_s = sessions, 0, 0.0
        self._stay_s, self._wait_s = FIRST_STAY_S, FIRST_TRIAL_S
        self._choose(drafts=self.drafts or sessions < LEAST)

    def _turn(self) -> None:
        self._turns -= 1
        if self._turns:
            self._choose(drafts=not self.drafts)
            return
        without, drafted = (own.rate for own in self._counted)
        self._wait_s, self._stay_s = self._stay_s, min(2 * self._stay_s, LONGEST_STAY_S)
        self._choose(drafts=without <= BETTER * drafted)

    def _choose(self, *, drafts: bool) -> None:
        self.drafts, self._way = drafts, _Sum()
