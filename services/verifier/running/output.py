"""A session's output: its tokens behind the prompt, and the hash of each of its beginnings."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from services.contract.types import EMPTY_HASH, extend_hash


class Output:
    """What stands behind the first `start` tokens of `text`, which grows here alone."""

    __slots__ = ("hashes", "start", "text")

    def __init__(self, text: list[int], start: int) -> None:
        self.text = text
        self.start = start
        self.hashes = array("Q", (EMPTY_HASH,))
        self._hash(text[start:])

    def __len__(self) -> int:
        return len(self.text) - self.start

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        self.text += tokens
        self._hash(tokens)

    def _hash(self, tokens: Sequence[int]) -> None:
        hashed = self.hashes[-1]
        for token in tokens:
            hashed = extend_hash(hashed, (token,))
            self.hashes.append(hashed)

    def hash_at(self, position: int) -> int | None:
        """The hash of the tokens before a position; None beyond the output."""
        return self.hashes[position] if 0 <= position < len(self.hashes) else None

    def behind(self, position: int) -> Sequence[int]:
        """The tokens from a position on."""
        return self.text[self.start + position :]
