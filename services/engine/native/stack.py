"""Where a model keeps its decoder layers, for any architecture that stacks them."""

from __future__ import annotations

from typing import Any

from torch import nn

from services.contract.errors import StartError


def stack_path(model: Any) -> str:
    """Where the decoder layers are, as in `model.get_submodule`.

    Raises StartError where there is not exactly one stack of them.
    """
    count = model.config.get_text_config().num_hidden_layers
    stacks: list[str] = [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    ]
    if len(stacks) != 1:
        kind = type(model).__name__
        raise StartError(f"{kind}: {len(stacks)} stacks of {count} decoder layers, not one")
    return stacks[0]
