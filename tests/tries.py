"""How many examples a property is tried on."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

_USUAL = 100
"""Of the profile that tries properties in full."""


def tries(count: int, **more: Any) -> settings:
    """So many, or as large a share of them as the profile tries of its usual number."""
    share = settings.default.max_examples / _USUAL
    return settings(max_examples=max(5, round(count * share)), deadline=None, **more)
