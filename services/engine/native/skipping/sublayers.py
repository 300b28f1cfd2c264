"""Attention and MLP of each decoder layer: found by name, left out for one forward.

For that forward a stand-in that adds nothing takes a skipped module's place among
the children of its layer; a layer that is skipped whole is passed by. Nothing else
is touched, so a forward without a mask runs the model as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from services.contract.errors import StartError
from services.engine.native.stack import stack_path
from services.engine.skip_mask import SkipMask

#: Names that architectures give a layer's attention, and the modules of its MLP in order.
_ATTENTIONS = (("self_attn",), ("attn",), ("attention",), ("self_attention",))
_MLPS = (
    ("mlp",),
    ("feed_forward",),
    ("block_sparse_moe",),
    ("moe",),
    ("ffn",),
    ("fc1", "fc2"),
)


@dataclass(frozen=True, slots=True)
class _Swap:
    """`child` of `parent` gives way to `stand_in`."""

    parent: nn.Module
    child: str
    stand_in: nn.Module


@dataclass(frozen=True, slots=True)
class _Layer:
    attention: tuple[_Swap, ...]
    mlp: tuple[_Swap, ...]
    whole: _Swap


class SubLayers:
    """The sub-layers of one model, each of which can be left out.

    Raises StartError for an architecture whose layers do not show one attention
    and one MLP.
    """

    def __init__(self, model: Any) -> None:
        stack: nn.Module = model.get_submodule(stack_path(model))
        self.modules: tuple[nn.Module, ...] = tuple(stack.children())
        """The decoder layers, in order."""
        kind = type(model).__name__
        self._layers = [
            _Layer(
                _swaps(layer, _ATTENTIONS, f"{kind}: layer {number} has no attention of its own"),
                _swaps(layer, _MLPS, f"{kind}: layer {number} has no MLP of its own"),
                _Swap(stack, str(number), _PassedBy(layer)),
            )
            for number, layer in enumerate(self.modules)
        ]
        self._out = False

    @contextmanager
    def without(self, mask: SkipMask, *, by_layers: bool = True) -> Iterator[None]:
        """Leave out what `mask` says. `by_layers`: pass by layers that are skipped whole."""
        if self._out:
            raise RuntimeError("sub-layers are left out already: one forward at a time")
        swaps = list(self._swaps(mask, by_layers))
        real = [swap.parent._modules[swap.child] for swap in swaps]
        self._out = True
        try:
            for swap in swaps:
                swap.parent._modules[swap.child] = swap.stand_in
            yield
        finally:
            for swap, module in zip(swaps, real, strict=True):
                swap.parent._modules[swap.child] = module
            self._out = False

    def _swaps(self, mask: SkipMask, by_layers: bool) -> Iterable[_Swap]:
        for number, layer in enumerate(self._layers):
            if by_layers and number in mask.attention and number in mask.mlp:
                yield layer.whole
                continue
            if number in mask.attention:
                yield from layer.attention
            if number in mask.mlp:
                yield from layer.mlp


def _swaps(layer: nn.Module, names: Sequence[tuple[str, ...]], missing: str) -> tuple[_Swap, ...]:
    """The one of `names` that all are children of the layer."""
    there = dict(layer.named_children())
    found = [group for group in names if all(name in there for name in group)]
    if len(found) != 1:
        raise StartError(f"{missing}, so it cannot be skipped")
    *before, last = found[0]
    # Of an MLP in several modules the last one gives the width.
    passed = [_Swap(layer, name, _AsItIs()) for name in before]
    adds_nothing = _NoAttention() if names is _ATTENTIONS else _Nothing()
    return (*passed, _Swap(layer, last, adds_nothing))


class _Nothing(nn.Module):
    """Adds nothing to the residual stream."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., d] to zeros [..., d]."""
        return torch.zeros_like(hidden_states)


class _NoAttention(nn.Module):
    """Adds nothing to the residual stream; attention weights are None as ever."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:  # noqa: ARG002
        """[1, n, d] to zeros [1, n, d]."""
        return torch.zeros_like(hidden_states), None


class _AsItIs(nn.Module):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states


class _PassedBy(nn.Module):
    """In place of a whole layer; the model may ask it for the layer's attributes."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.__dict__["_layer"] = layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_layer"], name)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: ARG002
        return hidden_states
