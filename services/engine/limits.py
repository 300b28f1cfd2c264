"""Limits that follow from a model's configuration and from the machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from services.contract.errors import StartError

_MEMORY_SHARE = 0.25
_CGROUP = Path("/sys/fs/cgroup")
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


def max_context(config: Any, wanted: int | None) -> int:
    """Longest text in tokens: the model's own limit, or `wanted` if that is shorter.

    Rotary scalings that depend on the length of the text would let one session
    change another's; such models are held to the length before scaling starts.
    """
    limits: list[int] = [config.max_position_embeddings, *_unscaled_lengths(config)]
    return min(limits if wanted is None else [*limits, wanted])


def _unscaled_lengths(config: Any) -> list[int]:
    rope = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in rope.values() if isinstance(value, dict)]
    return [
        entry.get("original_max_position_embeddings") or config.max_position_embeddings
        for entry in (rope, *nested)
        if entry.get("rope_type") in _LENGTH_DEPENDENT_ROPE
    ]


def affordable_tokens(bytes_per_token: int, memory: int | None = None) -> int:
    """Tokens of K/V that fit a quarter of the free memory (given, or the machine's), in bytes."""
    free = free_memory() if memory is None else memory
    return max(1, int(free * _MEMORY_SHARE) // max(1, bytes_per_token))


def free_memory() -> int:
    """Bytes this process may still take: the machine's, or its control group's if less."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return free
    return min(free, max(0, limit - used + _reclaimable()))


def _reclaimable() -> int:
    """Bytes of files that the control group has read and the kernel would drop first.

    Weights count among them once they were read: without these a group looks full.
    """
    try:
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
        return int(dict(line.split() for line in lines)["inactive_file"])
    except (OSError, ValueError, KeyError):
        return 0


def check_layers(layers: Sequence[int], count: int, model_id: str) -> None:
    """Raise StartError unless these are states of a model of `count` layers, ascending."""
    if not layers or list(layers) != sorted({*layers} & {*range(count + 1)}):
        raise StartError(
            f"{model_id}: states of layers {list(layers)} are asked for; "
            f"give some of 0 to {count}, ascending"
        )
