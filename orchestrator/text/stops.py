"""Stop strings in growing text: Aho and Corasick's automaton (CACM 18(6), 1975).

A node stands for the longest end of the text that begins some stop string, so
each character costs one step however many stop strings there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

ROOT = 0


class StopMatcher:
    """Finds any of a few strings, and tells how much of the text may still become one."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._fall: list[int] = [ROOT]
        self._match: list[str] = [""]
        self._held: list[int] = [0]
        for stop in stops:
            self._insert(stop)
        self._link()

    def step(self, node: int, char: str) -> int:
        """The node after one more character."""
        while node and char not in self._next[node]:
            node = self._fall[node]
        return self._next[node].get(char, ROOT)

    def match(self, node: int) -> str:
        """The longest stop string that ends here, or an empty string."""
        return self._match[node]

    def held(self, node: int) -> int:
        """Length of the longest end of the text that a longer text may complete to a stop."""
        return self._held[node]

    def _insert(self, stop: str) -> None:
        node = ROOT
        for depth, char in enumerate(stop, 1):
            if char not in self._next[node]:
                self._next[node][char] = len(self._next)
                self._next.append({})
                self._fall.append(ROOT)
                self._match.append("")
                self._held.append(depth)
            node = self._next[node][char]
        self._match[node] = stop

    def _link(self) -> None:
        """Set where each node falls back to; parents come before children."""
        queue = deque(self._next[ROOT].values())
        while queue:
            node = queue.popleft()
            shorter = self._fall[node]
            self._match[node] = self._match[node] or self._match[shorter]
            if not self._next[node]:
                self._held[node] = self._held[shorter]
            for char, child in self._next[node].items():
                self._fall[child] = self.step(shorter, char)
                queue.append(child)
