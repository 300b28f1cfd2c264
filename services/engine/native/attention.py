"""Ragged attention, registered with transformers under the name `RAGGED`.

The model's linear layers see one packed row [1, total]; this function gets that
row's Q, K and V per layer, appends K/V to each session's cache and lets every
session attend to its own text only (unpadded batches as in EMS-SD, Ni et al.,
arXiv 2405.07542). The layout of the row travels through the model's `**kwargs`.

No mask function is registered under the name, so transformers builds no mask.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from services.contract.errors import StartError
from services.engine.native.attending import Scoring

RAGGED = "paceline_ragged"
_UNSUPPORTED = ("s_aux", "position_bias", "head_mask")


class Attending(Protocol):
    """A packed row, as the model's attention asks for it."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        """One layer's attention; see `ragged_attention` for the shapes."""


def ragged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    paceline_layout: Attending | None = None,
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
    scoring = Scoring(scaling, sliding_window, softcap)
    return paceline_layout.attend(layer, query, key, value, scoring), None


def install(model: Any) -> None:
    """Make a transformers model use the ragged attention; StartError if it cannot."""
    from transformers import AttentionInterface

    AttentionInterface.register(RAGGED, ragged_attention)
    model.set_attn_implementation(RAGGED)
    if model.config._attn_implementation != RAGGED:
        raise StartError(f"{type(model).__name__} does not take its attention as a function")
