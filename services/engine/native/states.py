"""What goes into chosen layers of a model, and comes out of the last: kept during one forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from services.engine.limits import check_layers
from services.engine.native.stack import stack_path


class LayerStates:
    """Of a layer's number its input, of the number of layers the last one's output."""

    def __init__(self, model: Any, layers: Sequence[int], model_id: str) -> None:
        """Raises StartError for layers that there are not."""
        self._stack: Sequence[nn.Module] = tuple(model.get_submodule(stack_path(model)).children())
        check_layers(layers, len(self._stack), model_id)
        self._layers = tuple(layers)
        self._kept: dict[int, Tensor] = {}

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Around a forward."""
        with ExitStack() as stack:
            stack.callback(self._kept.clear)
            for number in self._layers:
                stack.callback(self._watch(number).remove)
            yield

    def rows(self) -> Tensor:
        """States [tokens, layers x width] of the forward that this is still around."""
        return torch.cat([self._kept[number] for number in self._layers], -1).flatten(0, -2)

    def _watch(self, number: int) -> Any:
        def before(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._kept[number] = given[0] if given else named["hidden_states"]

        def after(_: nn.Module, __: tuple[Any, ...], put_out: Any) -> None:
            self._kept[number] = put_out[0] if isinstance(put_out, tuple) else put_out

        if number < len(self._stack):
            return self._stack[number].register_forward_pre_hook(before, with_kwargs=True)
        return self._stack[-1].register_forward_hook(after)
