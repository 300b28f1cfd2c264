"""Counter-based random numbers: a pure function of a key, never of a state.

A key is hashed once (BLAKE2b) into 64 bits; each token id is then mixed with
its two halves by two rounds of MurmurHash3's 32-bit finaliser. Integer
arithmetic only, so every device and a reduced vocabulary agree on the bits.

Key layout, one 64-bit counter each after (seed, stream):

    DRAFT      epoch, drafter index, position, node, candidate
    ACCEPT     term, epoch, round, node, candidate
    RESIDUAL   term, epoch, round, node, candidate
    BONUS      term, epoch, round, node, candidate
    GUMBEL     position in the output             (then the token id)

GUMBEL is keyed by (seed, position, token id) alone: that is what makes the
target's own sample independent of drafter, block and retry (Daliri, Musco and
Suresh, 2408.07978). No other key may be drawn twice.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from hashlib import blake2b

import torch
from torch import Tensor

_SEED_MASK = (1 << 64) - 1
_FMIX_1 = 0x85EBCA6B - (1 << 32)
_FMIX_2 = 0xC2B2AE35 - (1 << 32)


class Stream(IntEnum):
    """What a random number decides; numbers of two streams are independent."""

    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3
    BONUS = 4
    GUMBEL = 5


def derive_key(seed: int, stream: Stream, *counters: int) -> tuple[int, int]:
    """Two independent int32 key halves of (seed, stream, counters)."""
    layout = struct.pack(f"<QB{len(counters)}Q", seed & _SEED_MASK, stream, *counters)
    low, high = struct.unpack("<ii", blake2b(layout, digest_size=8).digest())
    return low, high


def exponentials(seed: int, position: int, ids: int | Tensor) -> Tensor:
    """Unit exponentials of the GUMBEL stream at one output position, float32 [V].

    `ids` is the size of the vocabulary, or an integer tensor of the token ids
    wanted (their order is kept).
    """
    tokens = torch.arange(ids) if isinstance(ids, int) else ids
    return exponential_rows([(seed, position)], tokens)[0]


def exponential_rows(places: Sequence[tuple[int, int]], ids: Tensor) -> Tensor:
    """Unit exponentials for R places (seed, position), float32 [R, V].

    `ids`: integer token ids, [V] for the same ids in every row or [R, V].
    E = -log1p(-U) with U = (r + 1/2) * 2**-32 and r a 32-bit word: never 0, never
    infinite, and precise near 0, where the winner of argmax p/E lies.
    """
    keys = [derive_key(seed, Stream.GUMBEL, position) for seed, position in places]
    halves = torch.tensor(keys, dtype=torch.int32, device=ids.device)
    return _to_exponential(_words(halves, ids.to(torch.int32)))


def _words(keys: Tensor, ids: Tensor) -> Tensor:
    """32-bit words, as int32 [R, V], of keys [R, 2] and token ids [V] or [R, V]."""
    words = _finalise(ids ^ keys[:, :1])
    return _finalise(words.bitwise_xor_(keys[:, 1:]))


def _finalise(words: Tensor) -> Tensor:
    """MurmurHash3's fmix32 in place; `>>` on int32 copies the sign, so it is masked off."""
    words.bitwise_xor_((words >> 16).bitwise_and_(0xFFFF)).mul_(_FMIX_1)
    words.bitwise_xor_((words >> 13).bitwise_and_(0x7FFFF)).mul_(_FMIX_2)
    return words.bitwise_xor_((words >> 16).bitwise_and_(0xFFFF))


def _to_exponential(words: Tensor) -> Tensor:
    # 1 - U is exact in float64, so its logarithm is log1p(-U) at a quarter of the price;
    # ~r = 2**32 - 1 - r turns r + 1/2 into 2**32 - (r + 1/2) without leaving 32 bits.
    inverse = words.bitwise_not_().to(torch.float64)
    inverse = torch.where(inverse < 0, inverse + 2.0**32, inverse)
    return inverse.add_(0.5).mul_(2.0**-32).log_().neg_().to(torch.float32)
