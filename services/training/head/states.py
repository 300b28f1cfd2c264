"""The target's states at every token of its texts, computed once and kept on disk.

Beside each shard of texts lies one of states: a safetensors file, written whole and renamed, with
bfloat16 [T, layers x width] for each text by its number, and the layers in its metadata. A run that
was stopped goes on with the first shard that has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.engine.native import NativeEngine
from services.engine.port import Segment
from services.runtime.atomic_file import replacing
from services.training.texts import Text, load_shard, shards

#: Tokens that go through the target at once.
PASS_TOKENS = 2048

#: Of one state.
STATE_BYTES = 2


def states_path(shard: Path) -> Path:
    """Where the states of a shard of texts are."""
    return shard.with_name(shard.name.replace("texts-", "states-", 1))


def missing_states(folder: Path, layers: Sequence[int]) -> list[Path]:
    """Shards of texts that have no states of these layers yet."""
    return [path for path in shards(folder) if _layers_of(states_path(path)) != _listed(layers)]


def _layers_of(path: Path) -> str | None:
    from safetensors import safe_open

    if not path.exists():
        return None
    with safe_open(path, framework="pt") as file:
        return (file.metadata() or {}).get("layers")


def _listed(layers: Sequence[int]) -> str:
    return ",".join(map(str, layers))


def compute_states(engine: NativeEngine, layers: Sequence[int], shard: Path) -> None:
    """Send the texts of a shard through the target, and keep their states."""
    from safetensors.torch import save_file

    engine.watch(layers)
    tensors = {str(text.number): rows for text, rows in states_of(engine, load_shard(shard))}
    with replacing(states_path(shard)) as scratch:
        save_file(tensors, scratch, {"layers": _listed(layers)})


def states_of(engine: NativeEngine, texts: Iterable[Text]) -> Iterator[tuple[Text, Tensor]]:
    """Each text with the states bfloat16 [T, layers x width] of the layers that are watched."""
    for group in _passes(texts):
        tokens = [text.token_ids.tolist() for text in group]
        yield from zip(group, states_at(engine, tokens), strict=True)


def _passes(texts: Iterable[Text]) -> Iterator[Sequence[Text]]:
    """The texts in their order, as many at once as make a pass."""
    group: list[Text] = []
    for text in texts:
        if group and sum(len(one.token_ids) for one in (*group, text)) > PASS_TOKENS:
            yield group
            group = []
        group.append(text)
    if group:
        yield group


def states_at(engine: NativeEngine, texts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Of each text, in token ids, the states bfloat16 [T, layers x width], in one pass."""
    segments = [Segment(engine.new_cache(len(text)), text, logits_from=len(text)) for text in texts]
    try:
        _, states = engine.forward_with_states(segments)
    finally:
        for segment in segments:
            segment.cache.free()
    return [rows.to(torch.bfloat16).cpu() for rows in states]


class StateStore:
    """The states of all texts of a folder, read from disk when they are asked for."""

    def __init__(self, folder: Path) -> None:
        """Look all texts up; the states stay on disk."""
        from safetensors import safe_open

        self._files: dict[int, Any] = {}
        for path in map(states_path, shards(folder)):
            if path.exists():
                file: Any = safe_open(path, framework="pt")
                self._files |= {int(number): file for number in file.keys()}  # noqa: SIM118

    def __call__(self, number: int, count: int) -> Tensor:
        """States bfloat16 [count, layers x width] of the first tokens of a text."""
        rows: Tensor = self._files[number].get_slice(str(number))[:count]
        assert len(rows) == count
        return rows
