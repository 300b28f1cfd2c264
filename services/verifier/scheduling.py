"""How much of each session's work goes into one step. Pure, except for what it measured.

Blocks come first, in turns; prompts share what is left of the token budget,
so that a long one stalls nobody. The prefill share also shrinks to what the
machine does in `target_ms`, since a worker in a long step looks stalled.
"""

from __future__ import annotations

from collections.abc import Sequence

_FIRST_TOKENS = 64
_FEWEST_TOKENS = 16
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
    """How many prompt tokens a step may take to last about `target_ms`."""

    def __init__(self, target_ms: float, most: int) -> None:
        self._target_ms = target_ms
        self._most = most
        self._token_ms = target_ms / _FIRST_TOKENS

    def room(self, used: int) -> int:
        """Prompt tokens for a step that verifies `used` rows; never none."""
        affordable = min(self._most, int(self._target_ms / self._token_ms))
        return max(_FEWEST_TOKENS, affordable - used)

    def observe(self, tokens: int, step_ms: float) -> None:
        """Learn from a step of `tokens` rows in all."""
        measured = max(step_ms, 1e-3) / tokens
        self._token_ms = _MEMORY * self._token_ms + (1 - _MEMORY) * measured
