"""Rows of logprobs as they wait for their readers: packed, at an eighth of the memory."""

from __future__ import annotations

import struct
from typing import NewType

from services.contract.types import LogprobRow, ResolvedSampling

PackedRow = NewType("PackedRow", bytes)

# What one row takes beside its numbers: an object and the place where it stands.
_OVERHEAD = 48


def pack_row(row: LogprobRow) -> PackedRow:
    """A row as the wire has its numbers: float32 and uint32."""
    count = len(row.top_token_ids)
    return PackedRow(
        struct.pack(f"<f{count}I{count}f", row.logprob, *row.top_token_ids, *row.top_logprobs)
    )


def unpack_row(packed: PackedRow) -> LogprobRow:
    """Inverse of `pack_row`."""
    count = (len(packed) - 4) // 8
    numbers = struct.unpack(f"<f{count}I{count}f", packed)
    return LogprobRow(numbers[0], numbers[1 : 1 + count], numbers[1 + count :])


def memory_of(sampling: ResolvedSampling, tokens: int) -> int:
    """Bytes that the logprobs of so many tokens of a session take; 0 where none are asked for."""
    if sampling.logprobs is None:
        return 0
    return tokens * (_OVERHEAD + 8 * sampling.logprobs)


def prompt_memory_of(sampling: ResolvedSampling, tokens: int) -> int:
    """The same of a prompt of so many tokens."""
    top = sampling.prompt_logprobs
    return 0 if top is None else prompt_memory(tokens, top)


def prompt_memory(tokens: int, top: int) -> int:
    """Bytes that so many rows with `top` alternatives take."""
    return tokens * (_OVERHEAD + 8 * top)
