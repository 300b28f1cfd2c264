"""Which tokens would end a bad word behind a text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache


class BadWords:
    """Token sequences that a text is not to hold, by the token before the last one."""

    def __init__(self, sequences: Sequence[tuple[int, ...]]) -> None:
        """Each has at least one token."""
        self.reach = max(map(len, sequences), default=1) - 1
        """How many tokens before a place decide what is forbidden there."""
        self._always: set[int] = set()
        self._behind: defaultdict[int, list[tuple[tuple[int, ...], int]]] = defaultdict(list)
        for *before, last in sequences:
            if before:
                self._behind[before[-1]].append((tuple(before), last))
            else:
                self._always.add(last)

    def forbidden(self, tail: Sequence[int]) -> list[int]:
        """Tokens that may not follow an output that ends in `tail`, of `reach` tokens or all."""
        found = set(self._always)
        for before, last in self._behind.get(tail[-1], ()) if tail else ():
            if tuple(tail[-len(before) :]) == before:
                found.add(last)
        return sorted(found)


@lru_cache(maxsize=64)
def compiled(sequences: tuple[tuple[int, ...], ...]) -> BadWords:
    """The same sequences are worked out once."""
    return BadWords(sequences)
