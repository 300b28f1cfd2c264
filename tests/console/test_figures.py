"""Figures of one generation, from the events a client saw and when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from paceline import DraftSource, DraftSourceMetrics, Origin

from services.cluster.figures import NAMES, Stopwatch, by_source, summary
from services.contract.texts import common_prefix
from tests.console.events import STARTED, chunk, complete


def watched(times, events):
    ticks = iter([100.0, *(100.0 + one for one in times)])
    watch = Stopwatch(clock=lambda: next(ticks))
    figures = [watch.see(event) for event in events]
    assert figures[:-1] == [None] * (len(events) - 1)
    return figures[-1]


@pytest.fixture
def measured():
    own = ("x", Origin.BONUS)
    events = [STARTED, chunk(own), chunk(own, own, own, offset=1), complete(4, 2, 4, 2)]
    return watched([0.1, 0.5, 1.1, 2.0], events)


def test_rates_count_the_whole_time(measured):
    assert measured.tokens_per_second == pytest.approx(4 / 2.0)
    assert measured.first_token_s == pytest.approx(0.5)


def test_the_tokens_of_a_chunk_share_the_time_it_took(measured):
    assert measured.latencies_s == pytest.approx([0.2, 0.2, 0.2])


def test_the_summary_says_speed_efficiency_and_acceptance(measured):
    line = summary(measured)
    for words in ("2.0 tokens/s", "after 0.50 s", "block efficiency 2.00", "50% of 4 drafted"):
        assert words in line


def test_the_summary_of_plain_decoding_has_no_acceptance():
    events = [STARTED, chunk(("x", Origin.BONUS)), complete(1, 1)]
    assert "drafted" not in summary(watched([0.1, 0.2, 0.3], events))


def test_what_each_source_brought_stands_in_one_line():
    told = (
        DraftSourceMetrics(DraftSource.THIS_TEXT, 21, 14),
        DraftSourceMetrics(DraftSource.LAWS, 16, 5),
    )
    end = complete(4, 2, 37, 19)
    end = replace(end, speculation=replace(end.speculation, sources=told))
    one = watched([0.1, 0.2, 0.3], [STARTED, chunk(("x", Origin.BONUS)), end])
    line = "drafts kept: 14 of 21 from this text, 5 of 16 from the target's texts"
    assert by_source(one) == line
    assert set(NAMES) == set(DraftSource)


def test_of_plain_decoding_there_are_no_sources(measured):
    assert by_source(measured) == ""


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [([1, 2], [1, 2], 2), ([1, 2], [1, 3], 1), ([], [1], 0), ([1], [1, 2], 1)],
)
def test_the_common_prefix_of_two_texts(one, other, alike):
    assert common_prefix(one, other) == alike
