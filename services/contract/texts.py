"""Token ids side by side."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(text: Sequence[int], tokens: Sequence[int], start: int = 0) -> int:
    """How many of `tokens` stand in `text` from `start` on, until one does not."""
    for index, token in enumerate(tokens):
        if start + index >= len(text) or text[start + index] != token:
            return index
    return len(tokens)
