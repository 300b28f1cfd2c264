"""How much K/V a verifier reserves for a session, and must have free to take it."""

from __future__ import annotations

SPARE_TOKENS = 128
"""Tokens beyond a text and its next block, at least; a quarter of a long text."""


def reserve_of(text: int, block: int, most: int) -> int:
    """Tokens to reserve for a text of so many and blocks of `block`, which ends below `most`."""
    return min(most, text + block + max(SPARE_TOKENS, text // 4))
