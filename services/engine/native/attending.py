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
    """A way to attend in which a row's bits do not depend on its company; see `invariance`.

    `rows`: the fewest that are multiplied with a key. `keys`: so many values at a time are
    weighed, one part after the other; None: all at once. `width`: and so many of a head's numbers
    at a time are multiplied with a key's. `tile`: every product is of exactly so many rows, and of
    `keys` keys.
    """

    rows: int
    keys: int | None
    width: int | None = None
    tile: int | None = None


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
    part, width = (None, None) if steady is None else (steady.keys, steady.width)
    scale = query.shape[-1] ** -0.5 if scoring.scaling is None else scoring.scaling
    softcap = scoring.softcap
    if steady is not None and steady.tile is not None:
        return _in_tiles(query, keys, values, mask, scale, softcap, steady)
    if softcap is not None:
        scores = torch.tanh(_products(query, keys, width) * (scale / softcap)) * softcap
        return _weighed(scores if mask is None else scores + mask, values, part)
    if query.device.type == "cpu":
        return _weighed(_scores(query, keys, mask, scale, width), values, part)
    return fused(query, keys, values, mask, scoring)


def fused(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scoring: Scoring
) -> Tensor:
    """The same by the fused kernel, without a soft cap."""
    wide = None if mask is None else mask[None]
    return F.scaled_dot_product_attention(
        query[None], keys[None], values[None], attn_mask=wide, scale=scoring.scaling
    )[0]


def _scores(
    query: Tensor, keys: Tensor, mask: Tensor | None, scale: float, width: int | None
) -> Tensor:
    if mask is None:
        return _products(query, keys, width) * scale
    if width is not None:
        return torch.add(mask, _products(query, keys, width), alpha=scale)
    wide = mask.expand(len(query), -1, -1)
    return torch.baddbmm(wide, query, keys.transpose(1, 2), alpha=scale)


def _products(query: Tensor, keys: Tensor, width: int | None) -> Tensor:
    if width is None or query.shape[-1] <= width:
        return torch.bmm(query, keys.transpose(1, 2))
    pairs = zip(torch.split(query, width, -1), torch.split(keys, width, -1), strict=True)
    return reduce(torch.add, (torch.bmm(own, key.transpose(1, 2)) for own, key in pairs))


def _weighed(scores: Tensor, values: Tensor, part: int | None) -> Tensor:
    weights = torch.softmax(scores, dim=-1)
    if part is None or weights.shape[-1] <= part:
        return torch.bmm(weights, values)
    pairs = zip(torch.split(weights, part, -1), torch.split(values, part, 1), strict=True)
    return reduce(torch.add, (torch.bmm(*pair) for pair in pairs))


def _in_tiles(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
    steady: Steady,
) -> Tensor:
    """By products that all have one shape: `steady.tile` rows and `steady.keys` keys."""
    tile, part = steady.tile, steady.keys
    assert tile is not None
    assert part is not None
    count, rows, _ = query.shape
    lacking = -keys.shape[1] % part
    if lacking:
        mask = keys.new_zeros(1, rows, keys.shape[1]) if mask is None else mask
        mask = F.pad(mask, (0, lacking), value=-torch.inf)
        keys, values = (F.pad(those, (0, 0, 0, lacking)) for those in (keys, values))
    parts = keys.shape[1] // part
    keys, values = (those.reshape(count * parts, part, -1) for those in (keys, values))
    turned = keys.transpose(1, 2)
    done = []
    for begin in range(0, rows, tile):
        own = query[:, begin : begin + tile]
        short = tile - own.shape[1]
        own = F.pad(own, (0, 0, 0, short)).repeat_interleave(parts, 0)
        scores = torch.bmm(own, turned).view(count, parts, tile, part).transpose(1, 2)
        scores = scores.reshape(count, tile, parts * part)[:, : tile - short]
        if softcap is None:
            scores = scores * scale
        else:
            scores = torch.tanh(scores * (scale / softcap)) * softcap
        if mask is not None:
            scores = scores + mask[:, begin : begin + tile]
        weights = F.pad(torch.softmax(scores, dim=-1), (0, 0, 0, short))
        weights = weights.view(count, tile, parts, part).transpose(1, 2)
        weighed = torch.bmm(weights.reshape(count * parts, tile, part), values)
        sums = weighed.view(count, parts, tile, -1).unbind(1)
        done.append(reduce(torch.add, sums)[:, : tile - short])
    return torch.cat(done, 1)


def additive(visible: Tensor, like: Tensor) -> Tensor:
    """0 where something is seen and -inf where not, in the dtype and on the device of `like`."""
    mask = torch.zeros(visible.shape, dtype=like.dtype).masked_fill_(~visible, -torch.inf)
    return mask.to(like.device)
