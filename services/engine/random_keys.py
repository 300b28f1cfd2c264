"""Keys of the counter-based random numbers, and single numbers, without torch or numpy.

`services.engine.noise` has the key layout and the same numbers for whole vocabularies.
"""

from __future__ import annotations

import math
import struct
from enum import IntEnum
from hashlib import blake2b

SEED_MASK = (1 << 64) - 1
HALF_MASK = (1 << 32) - 1
FMIX_1, FMIX_2 = 0x85EBCA6B, 0xC2B2AE35


class Stream(IntEnum):
    """What a random number decides; numbers of two streams are independent."""

    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3
    BONUS = 4
    GUMBEL = 5


def derive_key(seed: int, stream: Stream, *counters: int) -> tuple[int, int]:
    """Two independent int32 key halves of (seed, stream, counters)."""
    layout = struct.pack(f"<QB{len(counters)}Q", seed & SEED_MASK, stream, *counters)
    low, high = struct.unpack("<ii", blake2b(layout, digest_size=8).digest())
    return low, high


def gumbel_halves(seed: int, position: int) -> tuple[int, int]:
    """The GUMBEL key's halves as they enter the words, unsigned."""
    return folded(*derive_key(seed, Stream.GUMBEL, position))


def folded(low: int, high: int) -> tuple[int, int]:
    """Key halves as they enter the words, unsigned.

    fmix32 is: x ^= x >> 16, stir, x ^= x >> 16. The last step of the first round
    and the first of the second undo each other, except on the key half between
    them; and the very first splits into one on the ids and one on the key.
    """
    low, high = low & HALF_MASK, high & HALF_MASK
    return low ^ low >> 16, high ^ high >> 16


def word(halves: tuple[int, int], token: int) -> int:
    """The 32-bit word of one token at the place of `gumbel_halves`."""
    mixed = token ^ token >> 16 ^ halves[0]
    mixed = mixed * FMIX_1 & HALF_MASK
    mixed = (mixed ^ mixed >> 13) * FMIX_2 & HALF_MASK ^ halves[1]
    mixed = mixed * FMIX_1 & HALF_MASK
    mixed = (mixed ^ mixed >> 13) * FMIX_2 & HALF_MASK
    return mixed ^ mixed >> 16


def exponential(halves: tuple[int, int], token: int) -> float:
    """The unit exponential of one token at the place of `gumbel_halves`."""
    return -math.log((HALF_MASK - word(halves, token) + 0.5) * 2.0**-32)
