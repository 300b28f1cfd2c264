"""Counter-based random numbers: a pure function of a key, never of a state.

A key is hashed once (BLAKE2b) into 64 bits. For GUMBEL each token id is then
mixed with its two halves by two rounds of MurmurHash3's 32-bit finaliser.
Integer arithmetic only, so every device, numpy and a reduced vocabulary agree
on the bits. The other streams take one number per key: `uniform`.

Key layout, one 64-bit counter each after (seed, stream):

    DRAFT      draft key, position, node, candidate
    ACCEPT     term, opening, step, node, candidate
    RESIDUAL   term, opening, step, node, candidate
    BONUS      term, opening, step, node, candidate
    GUMBEL     position in the output             (then the token id)

`node` is the row of the parent: 0 the committed text, i + 1 draft token i.
GUMBEL is keyed by (seed, position, token id) alone: that is what makes the
target's own sample independent of drafter, block and retry (Daliri, Musco and
Suresh, 2408.07978). No other key may be drawn twice. Every key passes through
`derive_key`, so one place sees them all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.engine.random_keys import FMIX_1, FMIX_2, HALF_MASK, Stream, derive_key, folded

__all__ = ["Stream", "derive_key"]


def uniform(seed: int, stream: Stream, *counters: int) -> float:
    """The one number of a key, uniform on the multiples of 2**-53 in [0, 1): never 1."""
    low, high = derive_key(seed, stream, *counters)
    bits = (high & HALF_MASK) << 32 | (low & HALF_MASK)
    return (bits >> 11) * 2.0**-53


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
    """
    return to_exponential(word_rows(places, ids)).to(torch.float32)


def word_rows(places: Sequence[tuple[int, int]], ids: Tensor) -> Tensor:
    """32-bit words of the GUMBEL stream, as int32 [R, V], for R places (seed, position).

    `ids`: integer token ids, [V] for the same ids in every row or [R, V].
    """
    halves = [_folded_halves(seed, position) for seed, position in places]
    keys = torch.tensor(halves, dtype=torch.int64, device=ids.device).to(torch.int32)
    folded = ids.to(torch.int32)
    folded = folded ^ (folded >> 16).bitwise_and_(0xFFFF)
    words = _stir(_stir(folded ^ keys[:, :1]).bitwise_xor_(keys[:, 1:]))
    return words.bitwise_xor_((words >> 16).bitwise_and_(0xFFFF))


def to_exponential(words: Tensor) -> Tensor:
    """E = -log1p(-U) in float64 of int32 words r, with U = (r + 1/2) * 2**-32.

    Never 0, never infinite, and precise near 0, where the winner of argmax p/E lies.
    """
    # 1 - U is exact in float64, so its logarithm is log1p(-U) at a quarter of the price;
    # ~r = 2**32 - 1 - r turns r + 1/2 into 2**32 - (r + 1/2) without leaving 32 bits.
    inverse = words.bitwise_not().to(torch.float64)
    inverse = torch.where(inverse < 0, inverse + 2.0**32, inverse)
    return inverse.add_(0.5).mul_(2.0**-32).log_().neg_()


def words_of(seed: int, position: int, folded: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The words of `word_rows` at one place, by numpy on a CPU: [V] of `fold(ids)` [V]."""
    low, high = _folded_halves(seed, position)
    spare = np.empty_like(folded)
    words = _stir_numpy(folded ^ np.uint32(low), spare)
    words ^= np.uint32(high)
    words = _stir_numpy(words, spare)
    words ^= np.right_shift(words, np.uint32(16), out=spare)
    return words


def fold(ids: NDArray[np.integer]) -> NDArray[np.uint32]:
    """Token ids after the first step of the hash, which is the same for every key."""
    words = ids.astype(np.uint32)
    return words ^ (words >> np.uint32(16))


def exponential_of(words: NDArray[np.uint32]) -> NDArray[np.float64]:
    """`to_exponential` by numpy."""
    exponential: NDArray[np.float64] = -np.log((np.invert(words) + 0.5) * 2.0**-32)
    return exponential


def _folded_halves(seed: int, position: int) -> tuple[int, int]:
    """The GUMBEL key's halves as they enter the words, unsigned."""
    return folded(*derive_key(seed, Stream.GUMBEL, position))


def _stir(words: Tensor) -> Tensor:
    """The inner part of fmix32, in place; `>>` on int32 copies the sign, so it is masked off."""
    words.mul_(FMIX_1 - (1 << 32))
    return words.bitwise_xor_((words >> 13).bitwise_and_(0x7FFFF)).mul_(FMIX_2 - (1 << 32))


def _stir_numpy(words: NDArray[np.uint32], spare: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The inner part of fmix32, in place; `spare` is overwritten."""
    words *= np.uint32(FMIX_1)
    words ^= np.right_shift(words, np.uint32(13), out=spare)
    words *= np.uint32(FMIX_2)
    return words
