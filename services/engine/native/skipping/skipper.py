"""A model that can run with a mask, checked at the first use.

What makes skipping right is that a sub-layer only adds to the residual stream: with
both left out, a layer must hand on its input. That holds for pre-norm and parallel
layers, and for norms after a sub-layer as long as they map zero to zero. It fails
where such a norm has a bias, where the stream itself is normalised (the first
transformers, OPT-350m), or where a layer holds anything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from services.contract.errors import PacelineError, StartError
from services.engine.native.kv import PagedBudget, PagedCache
from services.engine.native.layout import Layout
from services.engine.native.skipping.sublayers import SubLayers
from services.engine.port import Segment
from services.engine.skip_mask import SkipMask

_TOLERANCE = 1e-5
_TEXT = (0, 1, 2, 1)


class Skipper:
    """Runs one model's forwards with masks. One caller at a time, as the engine it serves."""

    def __init__(self, model: Any, name: str, run: Any) -> None:
        """Find the sub-layers and check them; `run` computes a packed step's logits.

        Raises StartError, one line, for an architecture that cannot skip.
        """
        self._sublayers = SubLayers(model)
        self.layers = len(self._sublayers.modules)
        try:
            self._check(name, run)
        except PacelineError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise StartError(f"{name}: its sub-layers cannot be skipped ({reason})") from error

    def without(self, mask: SkipMask) -> AbstractContextManager[None]:
        """Leave out what the mask says; ValueError for a mask of another size."""
        if mask.layers != self.layers:
            raise ValueError(f"a mask of {mask.layers} layers for a model of {self.layers}")
        return nullcontext() if mask.empty else self._sublayers.without(mask)

    def _check(self, name: str, run: Any) -> None:
        every = range(self.layers)
        mask = SkipMask.of(self.layers, every, every)
        cache = PagedCache(PagedBudget(len(_TEXT), self.layers), len(_TEXT))
        layout = Layout([Segment(cache, _TEXT, logits_from=len(_TEXT))], mask.attention)
        with (
            torch.inference_mode(),
            _watching(self._sublayers.modules) as moved,
            self._sublayers.without(mask, by_layers=False),
        ):
            run(layout)
        layout.commit(self.layers)
        if len(moved) != self.layers or not max(moved) <= _TOLERANCE:
            figure = f"moves its input by {max(moved):.1e}" if moved else "was not run"
            raise StartError(
                f"{name}: its sub-layers cannot be skipped (a layer without them {figure})"
            )


@contextmanager
def _watching(layers: Sequence[nn.Module]) -> Iterator[list[float]]:
    """How far each layer that runs moves its input, relative to the input's size."""
    moved: list[float] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given: Tensor = args[0] if args else kwargs["hidden_states"]
        if not isinstance(output, Tensor):
            raise TypeError(f"a layer returns {type(output).__name__}")
        moved.append(float((output - given).float().norm() / given.float().norm().clamp_min(1e-9)))

    hooks = [layer.register_forward_hook(note, with_kwargs=True) for layer in layers]
    try:
        yield moved
    finally:
        for hook in hooks:
            hook.remove()
