"""What a target says after its chat header and one token, for every token that it knows.

All of them stand at one place, each seeing the header and itself alone: a tree of one level
behind the header's K/V, a few hundred at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from services.engine.native import NativeEngine
from services.engine.ngram_file import FIRSTS
from services.engine.port import KVCache, Segment
from services.runtime.atomic_file import replacing

ROWS = 256
_KEEP_EVERY = 16


class Firsts:
    """The likeliest tokens after each token and how likely they are, as far as they are known.

    `ids` and `probabilities`: [V, 8], best first; the first `done` rows are there.
    """

    def __init__(self, vocab_size: int) -> None:
        self.ids: NDArray[np.int64] = np.zeros((vocab_size, FIRSTS), dtype=np.int64)
        self.probabilities: NDArray[np.float32] = np.zeros((vocab_size, FIRSTS), dtype=np.float32)
        self.done = 0

    def load(self, path: Path) -> None:
        """Go on from what an earlier run kept, if it fits."""
        try:
            with np.load(path, allow_pickle=False) as kept:
                ids, probabilities = kept["ids"], kept["probabilities"]
        except (OSError, ValueError, KeyError, EOFError):
            return
        if ids.shape == probabilities.shape and ids.shape[1:] == (FIRSTS,):
            self.done = min(len(ids), len(self.ids))
            self.ids[: self.done] = ids[: self.done]
            self.probabilities[: self.done] = probabilities[: self.done]

    def save(self, path: Path) -> None:
        """Keep what is there."""
        with replacing(path) as scratch, scratch.open("wb") as file:
            np.savez(file, ids=self.ids[: self.done], probabilities=self.probabilities[: self.done])

    def learn(self, engine: NativeEngine, header: Sequence[int], path: Path) -> Generator[int]:
        """Find out the rest, kept in `path` now and then; yields the tokens done so far."""
        cache = engine.new_cache(len(header) + ROWS)
        try:
            engine.forward([Segment(cache, list(header), logits_from=len(header))])
            while self.done < len(self.ids):
                self._step(engine, cache)
                if self.done // ROWS % _KEEP_EVERY == 0:
                    self.save(path)
                yield self.done
        finally:
            cache.free()
            self.save(path)

    def _step(self, engine: NativeEngine, cache: KVCache) -> None:
        start, length = self.done, cache.length
        tokens = list(range(start, min(start + ROWS, len(self.ids))))
        (logits,) = engine.forward([Segment(cache, tokens, parents=[-1] * len(tokens))])
        cache.keep_path(length, ())
        best = torch.topk(torch.softmax(logits, -1), min(FIRSTS, logits.shape[-1]))
        end, width = start + len(tokens), best.indices.shape[-1]
        self.ids[start:end, :width] = best.indices.cpu().numpy()
        self.probabilities[start:end, :width] = best.values.float().cpu().numpy()
        self.done = end
