"""What steps take, and how much of prompts they may have."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from services.scheduling.step_time import StepTimeModel
from services.verifier.options import VerifierOptions
from services.verifier.running.session import RunningSession
from services.verifier.running.turns import Turn
from services.verifier.scheduling import PrefillPace


class StepPace:
    """How many tokens of prompts a step may have, by what steps took."""

    def __init__(self, options: VerifierOptions) -> None:
        self._prompts = PrefillPace(
            options.target_step_ms, options.max_step_tokens, options.prefill_slowdown
        )
        self._line = StepTimeModel()
        """Seconds of a step without prompts over its rows, as measured."""
        self._recent_ms: deque[float] = deque(maxlen=16)

    @property
    def step_ms(self) -> float:
        """What a step took lately."""
        return sum(self._recent_ms) / max(1, len(self._recent_ms))

    def prompt_room(
        self,
        feeding: Sequence[RunningSession],
        turns: Sequence[Turn],
        every: Collection[RunningSession],
    ) -> int:
        """Prompt tokens for a step of these turns, where `feeding` wait to be read."""
        used = sum(turn.rows for turn in turns)
        came = min(own.since for own in feeding)
        decoding = sum(own.filled_at < came and own.ready for own in every)
        if not decoding:
            return self._prompts.room(used)
        return self._prompts.room(used, self._line, len(feeding) / decoding)

    def observe(self, turns: Sequence[Turn], took_ms: float) -> None:
        """Learn from a step."""
        rows = sum(turn.rows for turn in turns)
        prompts = sum(turn.prompt for turn in turns)
        if prompts:
            self._prompts.observe(rows, prompts, took_ms, self._line)
        if took_ms and not (prompts and self._line.weight):
            self._line = self._line.add(rows, 1e-3 * took_ms)
        self._recent_ms.append(took_ms)
