"""What penalties and bad words know of a text: its tokens, how often each, and the last ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.contract.sampling import counts
from services.contract.types import ResolvedSampling

Counts = tuple[NDArray[np.int64], NDArray[np.int64]]


def wants_history(sampling: ResolvedSampling) -> bool:
    """Whether a row's law depends on its prefix: by counts for a penalty, or by a bad word."""
    return counts(sampling) or bool(sampling.bad_words)


class History:
    """The distinct tokens of prompt and output, each with its count in the output.

    Grows and shrinks at the end of the output, in time proportional to the
    tokens moved. Slots are given in order of first appearance, so those that
    fall empty are always the last ones.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._slots: dict[int, int] = {}
        self._output: list[int] = []
        self._ids = np.zeros(max(64, len(prompt)), dtype=np.int64)
        self._counts = np.zeros_like(self._ids)
        for token in prompt:
            self._slot(token)
        self._prompt_slots = len(self._slots)

    @property
    def output_length(self) -> int:
        """Output tokens counted."""
        return len(self._output)

    def extend(self, tokens: Sequence[int]) -> None:
        """`tokens` were appended to the output."""
        for token in tokens:
            slot = self._slot(token)  # may replace the arrays
            self._counts[slot] += 1
        self._output += tokens

    def rewind(self, output_length: int) -> None:
        """The output was cut to its first `output_length` tokens.

        Raises ValueError when it never had as many.
        """
        if not 0 <= output_length <= len(self._output):
            raise ValueError(f"cannot rewind {len(self._output)} tokens to {output_length}")
        while len(self._output) > output_length:
            self._forget(self._output.pop())

    def tail(self, count: int) -> Sequence[int]:
        """The last `count` output tokens, or all of them."""
        return self._output[max(0, len(self._output) - count) :]

    def counts(self, path: Sequence[int] = ()) -> Counts:
        """Distinct ids [N] of the text and of `path` after it; counts [N] in output and path.

        Both are to be read at once: they may be views of what `extend` changes.
        """
        size = len(self._slots)
        ids, counts = self._ids[:size], self._counts[:size]
        if not path:
            return ids, counts
        fresh = [token for token in dict.fromkeys(path) if token not in self._slots]
        own = {token: size + i for i, token in enumerate(fresh)}
        longer = np.concatenate([counts, np.zeros(len(fresh), dtype=np.int64)])
        for token in path:
            longer[self._slots[token] if token in self._slots else own[token]] += 1
        return np.concatenate([ids, np.array(fresh, dtype=np.int64)]), longer

    def _slot(self, token: int) -> int:
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[slot] = token
        return slot

    def _forget(self, token: int) -> None:
        slot = self._slots[token]
        self._counts[slot] -= 1
        if self._counts[slot] == 0 and slot >= self._prompt_slots:
            del self._slots[token]
