"""Drafting by prompt lookup: copy what followed the last tokens when they stood before.

"Prompt Lookup Decoding" (Saxena, 2023, github.com/apoorvumang/prompt-lookup-decoding).
No model, no torch, any tokenizer. A pool of phrases that outlives the session
(Ouroboros, Zhao et al., 2402.13720) would be another source for the same copy.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.common.types import DraftTree, OpenDraft, VerifyMode, WorkerDescription
from services.drafter.protocol import Ask, KVUsage, Proposed, SessionKey

Gram = tuple[int, ...]


class GramTable:
    """Where each n-gram of a growing text ended, for one n; one step back per token."""

    __slots__ = ("_earlier", "_grams", "_latest", "n")

    def __init__(self, n: int) -> None:
        self.n = n
        self._latest: dict[Gram, int] = {}
        self._grams: list[Gram] = []
        self._earlier: list[int] = []

    @property
    def earlier(self) -> int:
        """Where the text's last n tokens ended before (a text length), 0 = nowhere."""
        return self._earlier[-1] if self._earlier else 0

    def push(self, gram: Gram, end: int) -> None:
        """The text grew to `end` tokens, the last n of which are `gram`."""
        self._grams.append(gram)
        self._earlier.append(self._latest.get(gram, 0))
        self._latest[gram] = end

    def rewind(self, length: int) -> None:
        """The text is only its first `length` tokens again."""
        while len(self._grams) > max(0, length - self.n + 1):
            gram, earlier = self._grams.pop(), self._earlier.pop()
            if earlier:
                self._latest[gram] = earlier
            else:
                del self._latest[gram]


class NgramIndex:
    """The n-grams of one growing text, for every n in [shortest, longest]."""

    __slots__ = ("_tables", "length")

    def __init__(self, shortest: int, longest: int) -> None:
        self._tables = tuple(GramTable(n) for n in range(longest, shortest - 1, -1))
        self.length = 0
        """How many tokens of the text are indexed."""

    def extend(self, text: Sequence[int]) -> None:
        """Index the rest of `text`, whose first `length` tokens are indexed."""
        for end in range(self.length + 1, len(text) + 1):
            for table in self._tables:
                if end >= table.n:
                    table.push(tuple(text[end - table.n : end]), end)
        self.length = len(text)

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        for table in self._tables:
            table.rewind(length)
        self.length = min(self.length, length)

    def match(self) -> int:
        """The latest earlier place where the text's end stood: its end there, 0 = none.

        The longest n-gram that has one decides.
        """
        return next((table.earlier for table in self._tables if table.earlier), 0)


class NgramDrafter:
    """Copies the continuation of the latest match of the last `longest`..`shortest` tokens."""

    modes = frozenset(VerifyMode)
    samples = False
    trees = False

    def __init__(self, shortest: int = 2, longest: int = 4) -> None:
        self._shortest = shortest
        self._longest = longest
        self._indexes: dict[SessionKey, NgramIndex] = {}

    def describe(self, worker: WorkerDescription) -> WorkerDescription:
        """Works with any tokenizer: nothing to add."""
        return worker

    def usage(self) -> KVUsage:
        """No KV."""
        return KVUsage()

    def open(self, key: SessionKey, opening: OpenDraft) -> None:  # noqa: ARG002
        """An empty index; the text is indexed by the first step."""
        self._indexes[key] = NgramIndex(self._shortest, self._longest)

    def rewind(self, key: SessionKey, length: int) -> None:
        """Forget what was indexed beyond `length`."""
        self._indexes[key].rewind(length)

    def close(self, key: SessionKey) -> None:
        """Drop the index."""
        self._indexes.pop(key, None)

    def propose(self, asks: Sequence[Ask]) -> list[Proposed]:
        """One copied chain per session; without a match, nothing and final."""
        return [self._propose(ask) for ask in asks]

    def _propose(self, ask: Ask) -> Proposed:
        index = self._indexes[ask.key]
        index.extend(ask.text)
        start = index.match()
        if not start:
            return Proposed(final=True)
        return Proposed(DraftTree(tuple(copy_from(ask.text, start, ask.room))))


def copy_from(text: Sequence[int], start: int, count: int) -> list[int]:
    """`count` tokens from `start` (< len(text)) on; past the end, the copy itself goes on."""
    period = len(text) - start
    return [text[start + offset % period] for offset in range(count)]
