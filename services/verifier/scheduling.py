"""How much of each session's work goes into one step. Pure, except for what it measured.

Blocks come first, in turns; prompts share what is left of the token budget, so that a
long one stalls nobody. The prefill share also shrinks to what the machine does in
`target_ms`, since a worker in a long step looks stalled, and, while others decode, to
what makes their steps at most `slowdown` times as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from services.common.line import Line

_FIRST_TOKENS = 64
_FEWEST_TOKENS = 16
_FEWEST_BESIDE = 8
_MEMORY = 0.7


def share_prefill(left: Sequence[int], room: int) -> list[int]:
    """Tokens to feed per prompt: `room` in equal parts; short prompts leave theirs to the rest.

    Where there is less than a token for each, those opened first have one.
    """
    if room < len(left):
        return [1] * room + [0] * (len(left) - room)
    shares = [0] * len(left)
    waiting = sorted(range(len(left)), key=left.__getitem__)
    for done, i in enumerate(waiting):
        shares[i] = min(left[i], room // (len(waiting) - done))
        room -= shares[i]
    return shares


class PrefillPace:
    """How many prompt tokens a step may take."""

    def __init__(self, target_ms: float, most: int, slowdown: float = math.inf) -> None:
        """`target_ms`: what a step may last; `most`: its tokens; `slowdown`: beside decoding."""
        self._target_ms = target_ms
        self._most = most
        self._slowdown = slowdown
        self._token_ms = target_ms / _FIRST_TOKENS

    def room(self, used: int, beside: Line | None = None) -> int:
        """Prompt tokens for a step that verifies `used` rows; never none.

        `beside`: the time of a step over its rows, where others wait for this step, or will
        wait for its end.
        """
        affordable = min(self._most, int(self._target_ms / self._token_ms)) - used
        if beside is None:
            return max(_FEWEST_TOKENS, affordable)
        return max(_FEWEST_BESIDE, min(affordable, self._slowing(used, beside)))

    def observe(self, tokens: int, step_ms: float) -> None:
        """Learn from a step of `tokens` rows in all, some of which were a prompt's."""
        measured = max(step_ms, 1e-3) / tokens
        self._token_ms = _MEMORY * self._token_ms + (1 - _MEMORY) * measured

    def _slowing(self, used: int, line: Line) -> int:
        """Rows that make a step of `used` rows longer by what is allowed."""
        if not line.slope:
            return self._most
        longer = (self._slowdown - 1) * line.at(max(1, used))
        return int(min(self._most, longer / line.slope))
