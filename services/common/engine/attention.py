"""Ragged attention, registered with transformers under the name `RAGGED`.

The model's linear layers see one packed row [1, total]; this function gets that
row's Q, K and V per layer, appends K/V to each session's cache and lets every
session attend to its own text only (unpadded batches as in EMS-SD, Ni et al.,
arXiv 2405.07542). The layout of the row travels through the model's `**kwargs`.

No mask function is registered under the name, so transformers builds no mask.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from services.common.engine.layout import Layout, Piece
from services.common.errors import StartError

RAGGED = "paceline_ragged"
_UNSUPPORTED = ("s_aux", "position_bias", "head_mask")


def ragged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    paceline_layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer over the packed row.

    query [1, heads, total, d], key and value [1, kv_heads, total, d]; returns
    [1, total, heads, d_v]. Raises StartError for models that need more than
    masks, sliding windows and soft caps (sinks, position biases).
    """
    if paceline_layout is None:
        raise RuntimeError("the ragged attention needs the layout of its batch")
    for name in _UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise StartError(f"{type(module).__name__} needs {name}, which is not supported")
    layer: int = module.layer_idx  # type: ignore[assignment]
    counts = paceline_layout.counts
    written = [
        piece.append.write(layer, k, v)
        for piece, k, v in zip(
            paceline_layout.pieces,
            key.split_with_sizes(counts, dim=2),
            value.split_with_sizes(counts, dim=2),
            strict=True,
        )
    ]
    if sliding_window is None and softcap is None and paceline_layout.single:
        return _attend_singles(query, written, scaling), None
    outputs = [
        _attend(piece, part, *kv, scaling, sliding_window, softcap)
        for piece, part, kv in zip(
            paceline_layout.pieces, query.split_with_sizes(counts, dim=2), written, strict=True
        )
    ]
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)), None


def _attend_singles(
    query: Tensor, written: list[tuple[Tensor, Tensor]], scaling: float | None
) -> Tensor:
    """One new token per session, the common step of decoding: no masks, few operations."""
    _, heads, total, width = query.shape
    kv_heads = written[0][0].shape[1]
    # Query heads that share a K/V head become rows of it, so that K/V is read once.
    rows = query.transpose(1, 2).reshape(total, kv_heads, heads // kv_heads, width)
    outputs = [
        F.scaled_dot_product_attention(row, keys, values, scale=scaling)
        for row, (keys, values) in zip(rows.split_with_sizes([1] * total), written, strict=True)
    ]
    return torch.cat(outputs).view(1, total, heads, -1)


def _attend(
    piece: Piece,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """One session: query [1, heads, n, d] over its cache; returns [1, n, heads, d_v]."""
    _, heads, count, width = query.shape
    kv_heads = keys.shape[1]
    groups = heads // kv_heads
    if piece.starts_text and count > 1 and softcap is None and (window is None or count <= window):
        attended = F.scaled_dot_product_attention(
            query, keys, values, is_causal=True, scale=scaling, enable_gqa=groups > 1
        )
        return attended.transpose(1, 2)
    first, mask = piece.view(window, groups, query)
    if first:
        keys, values = keys[:, :, first:], values[:, :, first:]
    packed = query.reshape(1, kv_heads, groups * count, width) if groups > 1 else query
    if softcap is None:
        attended = F.scaled_dot_product_attention(
            packed, keys, values, attn_mask=mask, scale=scaling
        )
    else:
        attended = _softcapped(packed, keys, values, mask, scaling, softcap)
    return attended.reshape(1, heads, count, values.shape[-1]).transpose(1, 2)


def _softcapped(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    softcap: float,
) -> Tensor:
    """Attention with scores squashed to (-softcap, softcap), as in Gemma 2."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = torch.tanh(query @ keys.transpose(-1, -2) * (scale / softcap)) * softcap
    if mask is not None:
        scores = scores + mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return weights @ values


def install(model: Any) -> None:
    """Make a transformers model use the ragged attention; StartError if it cannot."""
    from transformers import AttentionInterface

    AttentionInterface.register(RAGGED, ragged_attention)
    model.set_attn_implementation(RAGGED)
    if model.config._attn_implementation != RAGGED:
        raise StartError(f"{type(model).__name__} does not take its attention as a function")
