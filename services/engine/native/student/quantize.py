"""Matrices in 8 or 4 bits: symmetric, in groups along the last dimension.

A group of neighbours shares one float16 scale (group-wise quantization, as in
ZeroQuant, Yao et al., 2206.01861); a code times its scale is the value. The last
group of a row may be shorter than the others.

    codes    int8 [..., width], or two 4-bit codes a byte: uint8 [..., ceil(width / 2)]
    scales   float16 [..., ceil(width / group)]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Bits = Literal[8, 4]

GROUP = 32
"""Values that share a scale."""

_INT8_LARGEST = 127.0
_INT4_LARGEST = 7.0
_INT4_SMALLEST = -8.0

# The whole numbers find the scale of a group that was quantized before, exactly.
_DIVISORS = (*range(1, 9), 5.5, 6.25, 6.5, 6.75, 7.25, 7.5, 7.75, 8.25, 8.5, 9.0)
_INT4_DIVISORS = (*(float(d) for d in _DIVISORS), *(-float(d) for d in _DIVISORS))
"""A group's largest value over one of these is a scale to try; of -8 and 7, either may hold it."""


def quantize(weights: Tensor, bits: Bits, group: int = GROUP) -> tuple[Tensor, Tensor]:
    """Codes and scales of `weights` [..., width].

    Quantizing what `dequantize` gave changes nothing at 4 bits, nor at 8 in a
    group that reaches 1e-3. Raises ValueError for values that are not finite or
    too large for a float16 scale.
    """
    groups = _grouped(weights.detach().to(torch.float32), group)
    scales = _int8_scales(groups) if bits == 8 else _int4_scales(groups)
    if not bool(groups.isfinite().all() and scales.isfinite().all()):
        raise ValueError("weights that are not finite, or too large, cannot be quantized")
    codes = _codes(groups, scales, bits).flatten(-2)[..., : weights.shape[-1]]
    codes = codes.to(torch.int8)
    return (codes if bits == 8 else _pack(codes)).contiguous(), scales.to(torch.float16)


def dequantize(codes: Tensor, scales: Tensor, width: int, group: int = GROUP) -> Tensor:
    """The values [..., width] in float32; int8 codes are 8 bits wide, uint8 holds two of 4."""
    whole = codes if codes.dtype is torch.int8 else _unpack(codes)[..., :width]
    each = scales.to(torch.float32).repeat_interleave(group, dim=-1)[..., :width]
    return whole.to(torch.float32) * each


def stored_shapes(
    shape: Sequence[int], bits: Bits, group: int = GROUP
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the codes and of the scales of a matrix of this shape."""
    *rows, width = shape
    columns = width if bits == 8 else math.ceil(width / 2)
    return (*rows, columns), (*rows, math.ceil(width / group))


def _grouped(weights: Tensor, group: int) -> Tensor:
    """[..., groups, group], the last group filled up with zeros."""
    width = weights.shape[-1]
    return F.pad(weights, (0, -width % group)).reshape(*weights.shape[:-1], -1, group)


def _int8_scales(groups: Tensor) -> Tensor:
    return _as_stored(groups.abs().amax(-1) / _INT8_LARGEST)


def _int4_scales(groups: Tensor) -> Tensor:
    """Of the scales to try, the one with the least squared error; float32 [..., groups]."""
    extreme = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))[..., 0]
    best = torch.full_like(extreme, torch.inf)  # stays where no scale can hold the group
    least = torch.full_like(extreme, torch.inf)
    for divisor in _INT4_DIVISORS:
        scales = _as_stored(extreme / divisor)
        error = (_codes(groups, scales, 4) * scales[..., None] - groups).square().sum(-1)
        better = error < least
        least, best = torch.where(better, error, least), torch.where(better, scales, best)
    return best


def _as_stored(scales: Tensor) -> Tensor:
    """Rounded to float16, so that the codes fit the scale that is read back."""
    return scales.to(torch.float16).to(torch.float32)


def _codes(groups: Tensor, scales: Tensor, bits: Bits) -> Tensor:
    """The nearest codes as float32 [..., groups, group]; 0 where the scale is 0."""
    low, high = (-_INT8_LARGEST, _INT8_LARGEST) if bits == 8 else (_INT4_SMALLEST, _INT4_LARGEST)
    inverse = torch.where(scales == 0, 0.0, 1.0 / scales)
    return (groups * inverse[..., None]).round_().clamp_(low, high)


def _pack(codes: Tensor) -> Tensor:
    """Two 4-bit codes a byte, the first one in the low half."""
    halves: Tensor = F.pad(codes, (0, codes.shape[-1] % 2)).view(torch.uint8) & 0xF
    return halves[..., ::2] | halves[..., 1::2] << 4


def _unpack(packed: Tensor) -> Tensor:
    halves = torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2).to(torch.int8)
    return torch.where(halves > 7, halves - 16, halves)
