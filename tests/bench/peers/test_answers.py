"""What a peer answered, in our own figures."""

import pytest
from paceline import Method

from bench.peers.answers import PeerAnswer


def answer(*pieces: tuple[list[int], int | None]) -> PeerAnswer:
    made = PeerAnswer(7, 5, 1, Method.GREEDY)
    for number, (tokens, drafted) in enumerate(pieces, 1):
        made.add(0.5 * number, tokens, drafted)
    return made


def test_verifications_that_are_known_become_rounds():
    measured = answer(([1], 0), ([2, 3, 4], 4), ([5], 2)).finish(2.0, "length")
    assert [(one.draft_tokens, one.accepted_tokens) for one in measured.rounds] == [
        (0, 0),
        (4, 2),
        (2, 0),
    ]
    speculation = measured.complete.speculation
    assert (speculation.num_target_steps, speculation.num_spec_steps) == (3, 2)
    assert speculation.draft_acceptance_rate == pytest.approx(2 / 6)
    assert speculation.block_efficiency == pytest.approx(5 / 3)


def test_forwards_that_are_not_known_are_not_guessed():
    measured = answer(([1, 2, 3], None)).finish(2.0, "length")
    assert (measured.rounds, measured.complete.speculation.num_target_steps) == ((), 0)


def test_a_chunk_without_tokens_is_no_arrival():
    assert answer(([], None), ([1], None)).finish(1.0, "stop").arrivals == ((1.0, 1),)
