"""From a transformers model to one that runs ragged steps, checked."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from services.contract.errors import PacelineError, StartError
from services.engine.checkpoint.stored import look_up_in_files, read_all
from services.engine.native import selfcheck
from services.engine.native.attention import install
from services.engine.native.fused_layers import fuse, unfuse
from services.engine.native.invariance import invariant as invariant_products
from services.engine.native.invariance import require_known
from services.engine.native.packing import ByteLinear, pack, packing_of
from services.engine.number_formats import require_int8
from services.engine.stages import stage

logger = logging.getLogger(__name__)

_ROUNDED = selfcheck.TOLERANCES[torch.float16]
"""How far fused layers may be from transformers' own, both with int8 weights: rows are rounded in
each product, which makes a step of what was noise."""


def prepare(
    model: Any,
    name: str,
    forward: selfcheck.Forward,
    *,
    check: bool = True,
    differentiable: bool = False,
    rounded: bool = False,
    invariant: bool = False,
) -> None:
    """Pack the weights where it pays, fuse layers, install the ragged attention, self-check.

    `forward` runs a packed step of this model. `differentiable`: gradients reach what goes
    in, which no packed weights do. `rounded`: weights become int8, after the check. `invariant`:
    products are batch-invariant. Raises StartError, with the figure, for a model whose ragged
    logits differ from its own, and where weights cannot be rounded.
    """
    model.eval().requires_grad_(False)
    try:
        if rounded:
            require_int8(str(model.device), name)
        packed = not (differentiable or rounded or is_part(model))
        if packed or rounded:
            look_up_in_files(model)
        _prepare(model, name, forward, check=check, packed=packed, invariant=invariant)
        if rounded:
            pack(model, ByteLinear)
            if check:
                _fuse_rounded(model, name, forward)
    except (PacelineError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise StartError(f"{name}: this architecture is not supported ({reason})") from error


def is_part(model: Any) -> bool:
    """Whether it is one rank's part of a model, whose linear layers are not plain ones."""
    return getattr(model, "tp_size", None) is not None


def _prepare(
    model: Any,
    name: str,
    forward: selfcheck.Forward,
    *,
    check: bool,
    packed: bool,
    invariant: bool,
) -> None:
    tolerance = selfcheck.tolerance_of(model)
    kind = packing_of(model) if packed else None
    if invariant:
        _require_cpu(model, name)
        require_known(model, name)
        kind = invariant_products(kind)
    if kind is not None:
        stage("packs its weights")
        pack(model, kind)
    read_all(model)
    if kind is not None and kind.widens:
        tolerance = selfcheck.TOLERANCES[torch.float32]
    if check:
        stage("compares its logits with the model's own")
        _check(model, name, forward, tolerance)
    install(model)


def _require_cpu(model: Any, name: str) -> None:
    device = model.device.type
    if device != "cpu":
        raise StartError(
            f"{name}: batch-invariant: on {device} only vLLM can be (--engine vllm); "
            "the native engine is on CPUs"
        )


def _fuse_rounded(model: Any, name: str, forward: selfcheck.Forward) -> None:
    """Fuse layers with rounded weights, where these say what transformers' own say with them."""
    texts = selfcheck.random_texts(model.config.get_text_config().vocab_size)
    stock = selfcheck.ragged_logits(model, forward, texts)
    _fuse(model, name, lambda: selfcheck.ragged_logits(model, forward, texts), stock, _ROUNDED)


def _check(model: Any, name: str, forward: selfcheck.Forward, tolerance: float) -> None:
    """The self-check. Fused layers that fail it give way to transformers' own, which must pass."""
    texts = selfcheck.random_texts(model.config.get_text_config().vocab_size)
    stock = selfcheck.stock_logits(model, texts)

    def ours() -> Tensor:
        return selfcheck.ragged_logits(model, forward, texts)

    if not _fuse(model, name, ours, stock, tolerance):
        selfcheck.require_equal(ours(), stock, tolerance, name)


def _fuse(
    model: Any, name: str, ours: Callable[[], Tensor], stock: Tensor, tolerance: float
) -> bool:
    """Fuse layers, unless the logits that they give then differ from those of `stock`."""
    if not fuse(model):
        return False
    try:
        selfcheck.require_equal(ours(), stock, tolerance, name)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        logger.warning("%s: layers stay as transformers has them (%s)", name, reason)
        unfuse(model)
        return False
    return True
