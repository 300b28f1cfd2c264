"""About how many bytes a session takes in the store."""

from __future__ import annotations

_KEYS = 8 * 1024
"""Its keys, its short values, and the first block of its rounds."""
_ROUND = 256
_ROUNDS_KEPT = 1_000
_TOKEN = 4


def stored_size(resolved: int, prompt: int, output: int, rounds: int) -> int:
    """Of a record with so many bytes of resolved values, tokens and rounds."""
    return _KEYS + resolved + _TOKEN * (prompt + output) + _ROUND * min(rounds, _ROUNDS_KEPT)


def most_stored(resolved: int, prompt: int, output: int) -> int:
    """The same of at most so many tokens, each a round: of two in one commit there are three."""
    return stored_size(resolved, prompt, output, output + output // 2)


FORGOTTEN = _KEYS
"""What is left of an ephemeral session that has ended."""
