"""Other CPUs than the one at hand, as the one place that decides on number formats is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from services.engine import number_formats
from services.engine.native.packing import BlockedLinear


def told(patch: pytest.MonkeyPatch, **changed: bool) -> None:
    """Let the CPU multiply otherwise than it does: see the fields of `number_formats.Cpu`."""
    other = replace(number_formats.cpu(), **changed)
    patch.setattr(number_formats, "cpu", lambda: other)


def told_of_bfloat16(patch: pytest.MonkeyPatch, there: bool) -> None:
    """Let the CPU multiply bfloat16, or not; skip where PyTorch refuses to emulate it."""
    if there and number_formats.cpu().blocked:
        try:
            BlockedLinear(torch.nn.Linear(8, 8, dtype=torch.bfloat16))
        except RuntimeError as error:
            pytest.skip(f"PyTorch says: {str(error).splitlines()[0]}")
    told(patch, bfloat16=there)
