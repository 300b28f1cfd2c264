"""Whether a session waits for drafts that come late, by what that brings. Pure.

Most drafts are there when a step begins, as their drafter ran ahead. A tree is made anew for each
text, and a slow drafter never catches up with steps that do not wait. So waiting is tried where few
steps have a draft, and kept where it brings more tokens by time than not waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

TRIAL = 12
"""Steps of a try, each way."""
FIRST_RETRY, LAST_RETRY = 96, 1536
"""Steps until the other way is tried again."""
SELDOM = 8
"""Of so many steps one has a draft, at most, where a chain does not catch up."""
BETTER = 1.05
"""Times as many tokens by time that waiting is to bring."""
WORSE, ENOUGH = 0.7, 5
"""A try of waiting ends behind so many steps if it brings less than such a share."""
KEEP = 0.9
SPARE_S = 0.02
"""Seconds on top of what drafts take."""
LONGEST_S = 1.0


@dataclass(slots=True)
class _Rate:
    """Tokens by time, of the last steps."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self.tokens = KEEP * self.tokens + tokens
        self.seconds = KEEP * self.seconds + seconds

    @property
    def value(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class Patience:
    """Of one session. `holds`: whether it waits for its drafts; `vain`: a try did not pay."""

    holds: bool = False
    vain: bool = False
    draft_ms: float = 0.0
    """What a draft takes, as far as it was sent."""
    token_ms: float = 0.0
    whole: bool = False
    """Whether drafts come whole: nothing follows what came."""
    _rates: tuple[_Rate, _Rate] = field(default_factory=lambda: (_Rate(), _Rate()))
    """Without waiting, and with."""
    _steps: int = 0
    """Since the way was chosen."""
    _with_draft: int = 0
    """Of these, steps that judged a draft."""
    _until: int = TRIAL
    """Steps after which it is looked at again."""
    _retry: int = FIRST_RETRY

    def __post_init__(self) -> None:
        if self.vain and not self.holds:
            self._until = self._retry

    def drafted(self, tokens: int, ms: float, *, whole: bool) -> None:
        """A draft came, in time or late."""
        self.whole = whole
        if tokens:
            self.token_ms += 0.25 * (ms / tokens - self.token_ms)
            self.draft_ms += 0.25 * (ms - self.draft_ms)

    def advanced(self, tokens: int, seconds: float, *, judged: bool) -> None:
        """A step brought so many tokens, so long after the one before."""
        self._rates[self.holds].add(tokens, seconds)
        self._steps += 1
        self._with_draft += judged
        if self._steps >= self._until or self._in_vain():
            self._review()

    def _in_vain(self) -> bool:
        """Whether waiting, which is being tried, is seen to cost much."""
        if not self.holds or self._until != TRIAL or self._steps < ENOUGH:
            return False
        free, held = (rate.value for rate in self._rates)
        return 0.0 < held < WORSE * free

    def hold_s(self, held: int, final: bool, chances: Sequence[float], step_ms: float) -> float:
        """Seconds to wait for more than the `held` tokens; 0 = none.

        `chances`: those of the next tokens of a chain, with and beyond the held ones; `step_ms`:
        what a step takes.
        """
        if not self.holds or final or not self.token_ms:
            return 0.0
        if self.whole:
            pays = (1 + sum(chances)) * step_ms > step_ms + self.draft_ms
            return self._patience(self.draft_ms) if pays and not held else 0.0
        wanted = _most_by_time(chances, step_ms, self.token_ms)
        return self._patience(wanted * self.token_ms) if held < wanted else 0.0

    def _patience(self, ms: float) -> float:
        return min(LONGEST_S, SPARE_S + 2e-3 * ms)

    def _review(self) -> None:
        free, held = (rate.value for rate in self._rates)
        tried = self._until == TRIAL
        seldom = (2 if self.whole else SELDOM) * self._with_draft < self._steps
        if self.holds and not (tried and free):
            # Waiting has been good for long, or was another session's way: look at the other one.
            self._choose(False, TRIAL)
        elif held and free and tried:
            better = held > BETTER * free
            self.vain = not better
            self._choose(better, self._retry)
            self._retry = min(2 * self._retry, LAST_RETRY)
        elif self.token_ms and seldom:
            self._choose(True, TRIAL)
        else:
            self._choose(False, self._retry)

    def _choose(self, holds: bool, until: int) -> None:
        self.holds, self._until = holds, until
        self._steps = self._with_draft = 0


def _most_by_time(chances: Sequence[float], step_ms: float, token_ms: float) -> int:
    """How many tokens of a chain, drafted one behind the other, bring most by time."""
    best, greatest, tokens = 0, 1.0 / step_ms, 1.0
    for count, chance in enumerate(chances, 1):
        tokens += chance
        if tokens / (step_ms + count * token_ms) > greatest:
            best, greatest = count, tokens / (step_ms + count * token_ms)
    return best
