"""The texts 0, 1, 2, … of a plan, written until they hold enough distributions.

The result does not depend on the order in which texts finish: it is the shortest prefix of
the series that holds enough distributions. So a run that was stopped, any number of times,
ends with the same texts as one that was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator

from services.training.texts import ShardWriter, Text, load_texts
from services.training.work import WorkFolder
from services.training.writing import Writer

_SHARD_LAWS = 16_384
_FLUSH_S = 30.0


class Series:
    """The texts of a folder, on their way to `goal` distributions.

    `allowed` says whether a text may be learnt from; one that may not counts nothing.
    """

    def __init__(self, work: WorkFolder, goal: int, allowed: Callable[[Text], bool]) -> None:
        """Read what is there already."""
        self._work, self._goal, self._allowed = work, goal, allowed
        self._texts: dict[int, Text | None] = {}
        for text in load_texts(work.texts):
            self._note(text)
        # All texts below `_end` are there; those below `_next` are there or being written.
        self._end = self._end_laws = 0
        self._extend()
        self._next, self._laws = self._end, self._end_laws
        self._drawn = 0

    @property
    def complete(self) -> bool:
        """Whether a prefix of the series holds enough distributions."""
        return self._end_laws >= self._goal

    @property
    def laws(self) -> int:
        """Distributions so far, those of texts in the making included."""
        return self._laws + self._drawn

    def texts(self) -> list[Text]:
        """The shortest prefix of the series that holds enough distributions, once complete."""
        beginning = (self._texts[number] for number in range(self._end))
        return [text for text in beginning if text is not None]

    def write(self, writer: Writer) -> Generator[int]:
        """Write what is missing; yields the distributions so far. Finished texts outlive a stop."""
        shards = ShardWriter(self._work.texts, _SHARD_LAWS)
        before, began = self._work.seconds, time.monotonic()
        flushed = began

        def flush() -> float:
            shards.flush()
            now = time.monotonic()
            self._work.seconds = before + now - began
            return now

        try:
            while not self.complete:
                for finished, drawn in writer.write(self._missing()):
                    self._absorb(finished, drawn)
                    shards.add(finished)
                    if time.monotonic() - flushed >= _FLUSH_S:
                        flushed = flush()
                    yield self.laws
                    if self.complete:
                        break
        finally:
            flush()

    def _missing(self) -> Iterator[int]:
        """Numbers to write next, until those in the making will do."""
        while self.laws < self._goal:
            number, self._next = self._next, self._next + 1
            if number in self._texts:
                self._laws += _laws_of(self._texts[number])
            else:
                yield number

    def _absorb(self, finished: Iterable[Text], drawn: int) -> None:
        self._drawn += drawn
        for text in finished:
            self._drawn -= len(text.prefixes)
            self._laws += _laws_of(self._note(text))
        self._extend()

    def _extend(self) -> None:
        """Move the end over texts that are there, no further than needed."""
        while self._end in self._texts and not self.complete:
            self._end_laws += _laws_of(self._texts[self._end])
            self._end += 1

    def _note(self, text: Text) -> Text | None:
        kept = text if self._allowed(text) else None
        self._texts[text.number] = kept
        return kept


def _laws_of(text: Text | None) -> int:
    return 0 if text is None else len(text.prefixes)
