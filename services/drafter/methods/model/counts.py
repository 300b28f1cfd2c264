"""Token counts of a session's text, where a penalty needs them."""

from __future__ import annotations

from collections.abc import Sequence

from services.contract.types import OpenDraft
from services.engine.sampling import History, wants_history


class TextCounts:
    """Counts that follow the text of one session."""

    def __init__(self, opening: OpenDraft) -> None:
        self._prompt_length = len(opening.prompt)
        self._history = History(opening.prompt) if wants_history(opening.sampling) else None

    def rewind(self, length: int) -> None:
        """The first `length` tokens of the text stay."""
        if self._history is not None:
            kept = max(0, length - self._prompt_length)
            self._history.rewind(min(self._history.output_length, kept))

    def of(self, text: Sequence[int]) -> History | None:
        """Those of the whole text; None where no penalty asks."""
        if self._history is not None:
            self._history.extend(text[self._prompt_length + self._history.output_length :])
        return self._history
