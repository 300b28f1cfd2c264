"""How chaos judges a session whose text is left to chance: by what the session has at last."""

from dataclasses import replace

import pytest
from paceline import Chunk, Unavailable

from testkit.chaos.__main__ import WAYS, cases
from testkit.chaos.listener import Listener
from testkit.chaos.run import departures
from testkit.chaos.transcript import Case, Drawn, Transcript
from tests.console.events import complete

STORED = (11, 12, 13, 14, 15, 16)
OPTIONS = {"temperature": 0.8, "rejection_sample_method": "block", "max_tokens": len(STORED)}
CASE = Case("the law", OPTIONS)


def heard(*parts: tuple[int, tuple[int, ...]], start: int = 0, ended: bool = True) -> Transcript:
    """What a reader was told: tokens from an offset on, part by part."""
    transcript = Transcript(start)
    for offset, token_ids in parts:
        transcript.absorb(Chunk(offset, token_ids, ""))
    if ended:
        transcript.absorb(complete(len(STORED), 1))
    return transcript


def listener(transcript: Transcript, second: Transcript | None = None) -> Listener:
    made = Listener("chaos-00000", CASE)
    made.transcript = transcript
    if second is not None:
        made.second = Listener("chaos-00000", CASE)
        made.second.transcript = second
    return made


WHOLE = heard((0, STORED))


def test_what_every_reader_heard_is_what_the_session_has():
    assert departures(listener(heard((0, STORED[:2]), (2, STORED[2:]))), WHOLE) == []
    first, second = heard((0, STORED[:3]), ended=False), heard((3, STORED[3:]), start=3)
    assert departures(listener(first, second), WHOLE) == []


@pytest.mark.parametrize(
    ("transcript", "why"),
    [
        (heard((0, STORED[:2]), (3, STORED[3:])), "tokens lost"),
        (heard((0, STORED[:3]), (2, STORED[2:])), "tokens doubled"),
        (heard((0, (*STORED[:3], 99, *STORED[4:]))), "tokens changed from offset 3 on"),
        (heard((0, STORED[:4])), "4 tokens instead of 6"),
        (heard((0, STORED[:4]), ended=False), "no end; 4 tokens came; reader 1: None"),
    ],
)
def test_tokens_that_are_lost_doubled_or_changed_are_told(transcript, why):
    assert any(why in line for line in departures(listener(transcript), WHOLE))


def test_a_token_that_only_the_first_of_two_readers_heard_is_told():
    first, second = heard((0, (11, 12, 99)), ended=False), heard((3, STORED[3:]), start=3)
    assert departures(listener(first, second), WHOLE) == ["tokens changed from offset 2 on"]


def test_a_text_that_is_stored_in_part_is_told_though_its_reader_heard_as_much():
    part = heard((0, STORED[:4]))
    assert departures(listener(part), part) == ["4 tokens instead of 6 are stored"]


def test_an_error_that_a_reader_met_is_told():
    broken = listener(WHOLE)
    broken.error = Unavailable("no verifier")
    assert departures(broken, WHOLE) == ["Unavailable: no verifier"]


def test_cases_are_greedy_coupled_standard_and_block_in_equal_parts():
    made = cases(20)
    assert len(made) % len(WAYS) == 0
    assert [case.rule for case in made[:4]] == ["auto", "standard", "auto", "block"]
    assert [case.same_text for case in made[:4]] == [True, False, True, False]
    assert {case.options["temperature"] for case in made[:4]} == {0.0, 0.8}


def test_a_text_left_to_chance_is_noted_with_what_its_law_depends_on():
    case = replace(CASE, options={**OPTIONS, "seed": 3}).with_seed(5)
    assert case.options["seed"] == 5
    assert Drawn.by(case, STORED) == Drawn("block", "the law", 0.8, STORED)
