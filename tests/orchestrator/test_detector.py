"""Who is silent for long is dead, unless this process stood still or long gaps are usual."""

from __future__ import annotations

import pytest

from orchestrator.workers.detector import LONGEST, Detector
from services.runtime.awake import AwakeClock

SILENCE = 2.0
REPORT = 0.25


class Line:
    """A peer that reports, and this process's clock, moved by hand."""

    def __init__(self) -> None:
        self.now = 50.0
        self.awake = AwakeClock(REPORT, self.now)
        self.detector = Detector(SILENCE)
        self.detector.begin(self.awake.at(self.now), 0.0)

    def wait(self, seconds: float) -> None:
        """The loop runs, and nothing comes."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now = min(end, self.now + 0.05)
            self.awake.beat(self.now)

    def stand_still(self, seconds: float) -> None:
        self.now += seconds
        self.awake.beat(self.now)

    def hear(self) -> None:
        self.detector.hear(self.awake.at(self.now), self.awake.missed)

    def hear_every(self, *gaps: float) -> None:
        for gap in gaps:
            self.wait(gap)
            self.hear()

    def judge(self) -> str:
        return self.detector.judge(self.awake.at(self.now), self.awake.missed)

    def found_after(self) -> float:
        """Seconds of silence until the peer is given up."""
        began = self.now
        while not self.judge():
            self.wait(0.05)
            assert self.now < began + 60
        return self.now - began


@pytest.fixture
def line() -> Line:
    return Line()


GAPS = {
    "a dead peer is found as soon as on a plain clock": ([REPORT] * 40, SILENCE),
    "a peer whose gaps are long is given twice the longest": ([0.3, 1.7, 0.3], 3.4),
    "however long its gaps, a dead peer is found": ([1.9, 3.7, 5.9], LONGEST * SILENCE),
    "old gaps are forgotten": ([1.7, *[REPORT] * 64], SILENCE),
    "what comes in quick succession says nothing of gaps": ([1.7, *[0.05] * 500], 3.4),
}


@pytest.mark.parametrize(("gaps", "found"), GAPS.values(), ids=GAPS)
def test_a_dead_peer_is_found_by_the_gaps_before(line: Line, gaps: list[float], found: float):
    line.hear_every(*gaps)
    assert line.found_after() == pytest.approx(found, abs=0.11)


def test_a_peer_is_not_silent_while_this_process_stood_still(line: Line):
    line.hear_every(*[REPORT] * 8)
    line.wait(0.2)
    line.stand_still(4.0)
    assert line.judge() == ""
    line.hear()
    line.wait(1.9)
    assert line.judge() == ""


def test_a_peer_that_died_during_a_standstill_is_found_after_it(line: Line):
    line.hear_every(*[REPORT] * 8)
    line.stand_still(4.0)
    assert line.found_after() == pytest.approx(SILENCE - REPORT, abs=0.11)


@pytest.mark.parametrize("away", [0.6, 2.0, 20.0])
def test_a_peer_that_was_away_and_comes_back_is_found_as_soon_the_next_time(line, away):
    for _ in range(3):
        line.hear_every(*[REPORT] * 8)
        assert line.found_after() == pytest.approx(SILENCE, abs=0.11)
        line.wait(away)
        line.detector.begin(line.awake.at(line.now), line.awake.missed)


def test_a_peer_that_was_given_up_and_answers_at_once_gets_more_time(line: Line):
    line.hear_every(*[REPORT] * 8)
    line.found_after()
    line.detector.begin(line.awake.at(line.now), line.awake.missed)
    line.hear_every(*[REPORT] * 8)
    assert line.found_after() == pytest.approx(2 * SILENCE, abs=0.3)


def test_the_reason_says_what_happened(line: Line):
    line.hear_every(*[0.3] * 9)
    line.stand_still(1.25)
    line.found_after()
    said = line.judge()
    assert said == "no message for 2.0 s (usual gap 0.3 s, this process stood still for 1.0 s)"
