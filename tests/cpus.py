"""Other CPUs than the one at hand, as the one place that decides on number formats is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from services.engine import number_formats
from services.engine.native.packing import BlockedLinear

_PACK = BlockedLinear._pack


def told(patch: pytest.MonkeyPatch, **changed: bool) -> None:
    """Let the CPU multiply otherwise than it does: see the fields of `number_formats.Cpu`."""
    other = replace(number_formats.cpu(), **changed)
    patch.setattr(number_formats, "cpu", lambda: other)


def told_of_bfloat16(patch: pytest.MonkeyPatch, there: bool) -> None:
    """Let the CPU multiply bfloat16, or not; a test in which PyTorch refuses to is skipped."""
    if there and not number_formats.cpu().bfloat16:
        patch.setattr(BlockedLinear, "_pack", _pack_or_skip)
    told(patch, bfloat16=there)


def _pack_or_skip(linear: BlockedLinear, weight: Tensor) -> Any:
    try:
        return _PACK(linear, weight)
    except RuntimeError as error:
        pytest.skip(f"PyTorch says: {str(error).splitlines()[0]}")
