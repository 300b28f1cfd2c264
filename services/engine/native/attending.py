"""The arithmetic of attention, for many sessions of like size at once.

In the CPU's kernels for half precision a plain product of matrices is several times as
fast as the fused attention, whose products are in float32; so scores are made, masked
and weighed here. Elsewhere the fused kernels are the fast ones.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


class Scoring(NamedTuple):
    """How a layer scores keys.

    `scaling` None: the root of the head's width, inverted. `window`: how many of the last
    keys a row sees, itself included; None: all. Beyond `softcap` scores are flattened
    (Gemma 2).
    """

    scaling: float | None = None
    window: int | None = None
    softcap: float | None = None


class Steady(NamedTuple):
    """A way to attend in which a row's bits do not depend on its company; see `steadiness`.

    `rows`: the fewest that are multiplied with a key. `keys`: so many values at a time are
    weighed, one part after the other; None: all at once. `width`: and so many of a head's numbers
    at a time are multiplied with a key's. `tile`: every product is of exactly so many rows, and of
    `keys` keys.
    """

    rows: int
    keys: int | None
    width: int | None = None
    tile: int | None = None


_FREE = Steady(1, None)


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scoring: Scoring,
    steady: Steady | None = None,
) -> Tensor:
    """Attention of each of n parts: query [n, rows, d] over keys and values [n, L, d].

    `mask`: additive, [n or 1, rows, L], the window included; None: all is seen. `steady`: in
    this way, on the CPU. Differentiable.
    """
    way = _FREE if steady is None else steady
    scale = query.shape[-1] ** -0.5 if scoring.scaling is None else scoring.scaling
    softcap = scoring.softcap
    if softcap is not None:
        scores = torch.tanh(_products(query, keys, way) * (scale / softcap)) * softcap
        return _weighed(scores if mask is None else scores + mask, values, way)
    if query.device.type == "cpu":
        return _weighed(_scores(query, keys, mask, scale, way), values, way)
    wide = None if mask is None else mask[None]
    return fused(query[None], keys[None], values[None], wide, scoring)[0]


def fused(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scoring: Scoring
) -> Tensor:
    """The same by the fused kernel, without a soft cap, of tensors [1, n, ...]."""
    return F.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, scale=scoring.scaling
    )


def _scores(query: Tensor, keys: Tensor, mask: Tensor | None, scale: float, way: Steady) -> Tensor:
    if mask is None:
        return _products(query, keys, way) * scale
    if way.width is not None or way.tile is not None:
        return torch.add(mask, _products(query, keys, way), alpha=scale)
    return torch.baddbmm(mask, query, keys.transpose(1, 2), alpha=scale)


def _products(query: Tensor, keys: Tensor, way: Steady) -> Tensor:
    if way.tile is not None:
        return _products_in_tiles(query, keys, *_sizes(way))
    width = way.width
    if width is None or query.shape[-1] <= width:
        return torch.bmm(query, keys.transpose(1, 2))
    pairs = zip(torch.split(query, width, -1), torch.split(keys, width, -1), strict=True)
    return reduce(torch.add, (torch.bmm(own, key.transpose(1, 2)) for own, key in pairs))


def _weighed(scores: Tensor, values: Tensor, way: Steady) -> Tensor:
    weights, part = torch.softmax(scores, dim=-1), way.keys
    if way.tile is not None:
        return _weighed_in_tiles(weights, values, *_sizes(way))
    if part is None or weights.shape[-1] <= part:
        return torch.bmm(weights, values)
    pairs = zip(torch.split(weights, part, -1), torch.split(values, part, 1), strict=True)
    return reduce(torch.add, (torch.bmm(*pair) for pair in pairs))


def _sizes(way: Steady) -> tuple[int, int]:
    """Of a way in tiles, how many rows and keys a product has."""
    assert way.tile is not None
    assert way.keys is not None
    return way.tile, way.keys


def _products_in_tiles(query: Tensor, keys: Tensor, tile: int, part: int) -> Tensor:
    """Each of `tile` rows and `part` keys."""
    turned = _parts(keys, part).transpose(1, 2)
    count = len(turned) // len(query)
    scores = []
    for own in _tiles(query, tile):
        products = torch.bmm(own.repeat_interleave(count, 0), turned)
        scores.append(products.view(-1, count, tile, part).transpose(1, 2).flatten(2))
    return torch.cat(scores, 1)[:, : query.shape[1], : keys.shape[1]]


def _weighed_in_tiles(weights: Tensor, values: Tensor, tile: int, part: int) -> Tensor:
    """Each of `tile` rows and `part` values, added up one after the other."""
    cut = _parts(values, part)
    count = len(cut) // len(values)
    padded = F.pad(weights, (0, -weights.shape[-1] % part))
    sums = []
    for own in _tiles(padded, tile):
        parts = own.reshape(-1, tile, count, part).transpose(1, 2).flatten(0, 1)
        products = torch.bmm(parts, cut).view(-1, count, tile, values.shape[-1])
        sums.append(reduce(torch.add, products.unbind(1)))
    return torch.cat(sums, 1)[:, : weights.shape[1]]


def _tiles(rows: Tensor, tile: int) -> tuple[Tensor, ...]:
    """Rows [n, rows, d] in groups of `tile`, with rows of zeros behind the last ones."""
    return torch.split(F.pad(rows, (0, 0, 0, -rows.shape[1] % tile)), tile, 1)


def _parts(those: Tensor, part: int) -> Tensor:
    """Keys or values [n, L, d] by so many: [n * parts, part, d], with zeros behind the last."""
    padded = F.pad(those, (0, 0, 0, -those.shape[1] % part))
    return padded.reshape(-1, part, those.shape[-1])


def additive(visible: Tensor, like: Tensor) -> Tensor:
    """0 where something is seen and -inf where not, in the dtype and on the device of `like`."""
    mask = torch.zeros(visible.shape, dtype=like.dtype).masked_fill_(~visible, -torch.inf)
    return mask.to(like.device)
