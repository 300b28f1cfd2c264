"""Other CPUs than the one at hand, as the one place that decides on number formats is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.engine import number_formats


def told(patch: pytest.MonkeyPatch, **changed: bool) -> None:
    """Let the CPU multiply otherwise than it does: see the fields of `number_formats.Cpu`."""
    other = replace(number_formats.cpu(), **changed)
    patch.setattr(number_formats, "cpu", lambda: other)
