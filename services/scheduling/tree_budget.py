"""The chances that nodes of a drafted tree are reached, calibrated."""

from __future__ import annotations

from collections.abc import Sequence

EDGES = (0.06, 0.12, 0.25, 0.45, 0.7)
"""Ranges of chances that are calibrated separately."""


def range_of(chance: float) -> int:
    """The range that a chance is in, counted from 0."""
    return sum([chance > edge for edge in EDGES])


def believed(reach: Sequence[float], factors: Sequence[float]) -> list[float]:
    """The calibrated chances of a tree's nodes: between 0 and 1, and still falling.

    `factors`: the correction factor of each range.
    """
    found, last = [], 1.0
    for chance in reach:
        last = min(last, chance * factors[range_of(chance)])
        found.append(last)
    return found
