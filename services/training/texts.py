"""Texts that a target wrote, with its distribution at every token it drew; kept in shards on disk.

A shard is one safetensors file, written whole and renamed, so that a run that was
stopped finds every finished text again:

    token_ids   [T]      all texts, one after the other
    lengths     [N]      tokens of each text
    rows        [N]      distributions of each text
    numbers     [N]      the text's number in its series
    prefixes    [R]      for each distribution, how many tokens of its text come before it
    law_ids     [R, 64]  the most likely tokens, best first
    law_logs    [R, 64]  their log-probabilities at temperature 1, float16
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from services.runtime.atomic_file import replacing

#: Tokens kept of each distribution.
LAW_TOKENS = 64

#: Bytes of one distribution with the token drawn from it.
LAW_BYTES = LAW_TOKENS * (4 + 2) + 4 + 4

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Text:
    """One text. Row r holds the target's distribution after the first `prefixes[r]` tokens.

    Shapes: token_ids [T]; prefixes [R]; law_ids and law_logs [R, n]. The distributions are
    those of temperature 1, whatever the text was drawn at.
    """

    number: int
    token_ids: Ids
    prefixes: Ids
    law_ids: Ids
    law_logs: NDArray[np.float16]


def save_shard(path: Path, texts: Sequence[Text]) -> None:
    """Write texts as one file, whole or not at all."""
    arrays = {
        "token_ids": np.concatenate([text.token_ids for text in texts]),
        "lengths": np.array([len(text.token_ids) for text in texts], dtype=np.int32),
        "rows": np.array([len(text.prefixes) for text in texts], dtype=np.int32),
        "numbers": np.array([text.number for text in texts], dtype=np.int64),
        "prefixes": np.concatenate([text.prefixes for text in texts]),
        "law_ids": np.concatenate([text.law_ids for text in texts]),
        "law_logs": np.concatenate([text.law_logs for text in texts]),
    }
    with replacing(path) as scratch:
        save_file(arrays, scratch)


def load_shard(path: Path) -> list[Text]:
    """The texts of one file."""
    arrays = load_file(path)
    tokens = _split(arrays["token_ids"], arrays["lengths"])
    rows = [_split(arrays[name], arrays["rows"]) for name in ("prefixes", "law_ids", "law_logs")]
    return [
        Text(int(number), *parts)
        for number, *parts in zip(arrays["numbers"], tokens, *rows, strict=True)
    ]


def _split(array: NDArray[np.generic], sizes: NDArray[np.int32]) -> list[NDArray[np.generic]]:
    return np.split(array, np.cumsum(sizes)[:-1])


def shards(folder: Path) -> list[Path]:
    """The shards in a folder, in the order they were written."""
    return sorted(folder.glob("texts-*.safetensors"))


def load_texts(folder: Path) -> Iterator[Text]:
    """All texts of a folder, one shard in memory at a time."""
    for path in shards(folder):
        yield from load_shard(path)


class ShardWriter:
    """Gathers finished texts and writes a shard whenever `size` distributions are together."""

    def __init__(self, folder: Path, size: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._size = size
        self._texts: list[Text] = []
        self._count = len(shards(folder))

    def add(self, texts: Iterable[Text]) -> None:
        """Take finished texts."""
        self._texts.extend(texts)
        if sum(len(text.prefixes) for text in self._texts) >= self._size:
            self.flush()

    def flush(self) -> None:
        """Write what is there."""
        if self._texts:
            save_shard(self._folder / f"texts-{self._count:05d}.safetensors", self._texts)
            self._count += 1
            self._texts = []
