"""How much of each session's work goes into one step. Pure, except for what it measured.

Blocks come first, in turns; prompts share what is left of the token budget, so that a
long one stalls nobody. The prefill share also shrinks to what the machine does in
`target_ms`, since a worker in a long step looks stalled, and, beside those who decoded before
the first of the prompts came, to what makes their steps at most `slowdown` times as long.
Where more sessions wait for their prompts than decode so, the delay may be as much longer:
it is felt by fewer than it serves. Who came with the prompts that wait has no claim before
them: of a crowd that comes at once all are served soonest where the prompts go first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from services.scheduling.step_time import StepTimeModel

_FIRST_TOKENS = 64
_FEWEST_TOKENS = 16
_FEWEST_BESIDE = 8
_MEMORY = 0.7
_ROW_MEMORY = 0.9


def share_prefill(left: Sequence[int], room: int) -> list[int]:
    """Tokens to feed per prompt, in the order of their turns: no more than `room` in all.

    Half of the room is for those whose turn it is first, so that each has its turn; the rest for
    those that have least left, so that a short prompt waits for no long one. A prompt gets as
    much as there is: in many small parts it would have its beginning read many times.
    """
    shares = [0] * len(left)
    shortest = sorted(range(len(left)), key=left.__getitem__)
    for half, order in ((room - room // 2, range(len(left))), (room // 2, shortest)):
        free = half
        for i in order:
            share = min(left[i] - shares[i], free)
            shares[i] += share
            free -= share
    return shares


class PrefillPace:
    """How many prompt tokens a step may take."""

    def __init__(self, target_ms: float, most: int, slowdown: float = math.inf) -> None:
        """`target_ms`: what a step may last; `most`: its tokens; `slowdown`: beside decoding."""
        self._target_ms = target_ms
        self._most = most
        self._slowdown = slowdown
        self._token_ms = target_ms / _FIRST_TOKENS
        self._row: float | None = None
        """Seconds that a prompt's row makes a step longer; not known before the first."""

    def room(self, used: int, beside: StepTimeModel | None = None, crowd: float = 1.0) -> int:
        """Prompt tokens for a step that verifies `used` rows; never none.

        `beside`: seconds of a step without prompts over its rows, where others wait for this
        step, or will wait for its end; `crowd`: how many wait for their prompts for each of
        these.
        """
        affordable = min(self._most, int(self._target_ms / self._token_ms)) - used
        if beside is None:
            return max(_FEWEST_TOKENS, affordable)
        return max(_FEWEST_BESIDE, min(affordable, self._slowing(used, beside, crowd)))

    def observe(self, tokens: int, prompts: int, step_ms: float, alone: StepTimeModel) -> None:
        """Learn from a step of `tokens` rows in all, `prompts` of them a prompt's.

        `alone`: seconds of a step without prompts over its rows.
        """
        measured = max(step_ms, 1e-3) / tokens
        self._token_ms = _MEMORY * self._token_ms + (1 - _MEMORY) * measured
        if alone.weight:
            longer = max(0.0, 1e-3 * step_ms - alone.at(tokens - prompts)) / prompts
            known = longer if self._row is None else self._row
            self._row = _ROW_MEMORY * known + (1 - _ROW_MEMORY) * longer

    def _slowing(self, used: int, line: StepTimeModel, crowd: float) -> int:
        """Rows that make a step of `used` rows longer by what is allowed."""
        row = line.slope if self._row is None else self._row
        if not row:
            return self._most
        longer = max(1.0, crowd) * (self._slowdown - 1) * line.at(max(1, used))
        return int(min(self._most, longer / row))
