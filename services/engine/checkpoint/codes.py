"""Weights of four and eight bits as a GGUF file has them: codes, and for each 32 what they mean.

A block of ggml (ggml-quants.c) is a scale, an offset where there is one, and codes, which are
whole numbers. Products of a few rows can be made of these, with a third of the bytes of bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GROUP = 32
"""Weights of a row with a scale and an offset in common."""
_Bytes = NDArray[np.uint8]
_Parts = tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Codes:
    """Weights [n, d]: `numbers` times `scales` plus `offsets`.

    `numbers`: uint8 [n, d], of `bits` bits. `scales` and `offsets`: float32 [n, d / 32].
    """

    numbers: Tensor
    scales: Tensor
    offsets: Tensor
    bits: int

    def rows(self, first: int, last: int | None) -> Codes:
        """Some of them."""
        those = slice(first, last)
        return Codes(self.numbers[those], self.scales[those], self.offsets[those], self.bits)

    def whole(self) -> Tensor:
        """The weights, float32 [n, d]."""
        groups = self.numbers.view(*self.scales.shape, GROUP)
        return (groups * self.scales[..., None] + self.offsets[..., None]).flatten(1)


def joined(parts: Sequence[Codes | None]) -> Codes | None:
    """Those of several matrices, one below the other; None where not all have such, and alike."""
    found = [part for part in parts if part is not None]
    if not found or len(found) < len(parts) or len({part.bits for part in found}) > 1:
        return None
    return Codes(
        torch.cat([part.numbers for part in found]),
        torch.cat([part.scales for part in found]),
        torch.cat([part.offsets for part in found]),
        found[0].bits,
    )


def read_codes(rows: NDArray[Any], kind: str) -> Codes:
    """Of rows [n, bytes] of a file, whose blocks are of this kind, one of `CODED`."""
    read, size, bits = CODED[kind]
    parts = read(np.ascontiguousarray(rows).reshape(-1, size))
    numbers, scales, offsets = (torch.from_numpy(part).view(len(rows), -1) for part in parts)
    return Codes(numbers, scales, offsets, bits)


def _halves(blocks: _Bytes, at: int) -> NDArray[np.float32]:
    """The float16 of each block that begins at a byte, [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: _Bytes) -> _Bytes:
    """Codes of bytes [..., n]: the low halves [..., n], then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], -1)


def _q4_0(blocks: _Bytes) -> _Parts:
    scales = _halves(blocks, 0)
    return _nibbles(blocks[:, 2:]), scales, -8 * scales


def _q4_1(blocks: _Bytes) -> _Parts:
    return _nibbles(blocks[:, 4:]), _halves(blocks, 0), _halves(blocks, 2)


def _q8_0(blocks: _Bytes) -> _Parts:
    scales = _halves(blocks, 0)
    return blocks[:, 2:] ^ np.uint8(128), scales, -128 * scales


def _q4_k(blocks: _Bytes) -> _Parts:
    """Eight groups, whose scales and offsets are numbers of six bits in twelve bytes."""
    scale, least = _halves(blocks, 0), _halves(blocks, 2)
    first, second, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, (rest & 15) | (first >> 2 & 48)], -1)
    offsets = np.concatenate([second & 63, (rest >> 4) | (second >> 2 & 48)], -1)
    numbers = _nibbles(blocks[:, 16:].reshape(-1, 4, GROUP))
    return numbers, scale * scales, -least * offsets


CODED: dict[str, tuple[Callable[[_Bytes], _Parts], int, int]] = {
    "Q4_0": (_q4_0, 18, 4),
    "Q4_1": (_q4_1, 20, 4),
    "Q8_0": (_q8_0, 34, 8),
    "Q4_K": (_q4_k, 144, 4),
}
"""By the file's name of a kind: what reads blocks, bytes of a block, and bits of a code."""
