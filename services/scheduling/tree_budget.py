"""How many nodes of a drafted tree pay for their verification, by their calibrated chances."""

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


def worth_most(chances: Sequence[float], prices: Sequence[float]) -> int:
    """The number of first nodes with the greatest gain over their cost; 0 = none pays.

    `prices`: the total cost of 1, 2, ... nodes, in tokens.
    """
    best, greatest, brought = 0, 0.0, 0.0
    for nodes, (chance, price) in enumerate(zip(chances, prices, strict=False), 1):
        brought += chance
        if brought - price > greatest:
            best, greatest = nodes, brought - price
    return best
