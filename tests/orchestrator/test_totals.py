"""Sums over rounds, and over sessions."""

from __future__ import annotations

from orchestrator.session.totals import SpecTotals
from tests.orchestrator.request_kit import NOTHING


def counted(*rounds: tuple[int, int, int]) -> SpecTotals:
    totals = SpecTotals()
    for emitted, drafted, accepted in rounds:
        totals.add(
            NOTHING._replace(emitted_tokens=emitted, draft_tokens=drafted, accepted_tokens=accepted)
        )
    return totals


def test_joined_sums_are_those_of_all_rounds_together():
    one, other = [(2, 3, 1), (1, 0, 0)], [(5, 4, 4), (1, 2, 0)]
    joined = counted(*one)
    joined.join(counted(*other))
    assert joined == counted(*one, *other)
    assert joined.histogram == [1, 1, 0, 0, 1]


def test_sources_are_summed_over_rounds_and_sessions():
    one, other = SpecTotals(), SpecTotals()
    one.count_sources([(1, 3, 2), (3, 4, 0)])
    one.count_sources([(1, 1, 1)])
    other.count_sources([(3, 1, 1), (5, 2, 0)])
    one.join(other)
    assert one.by_source == {1: (4, 3), 3: (5, 1), 5: (2, 0)}
