"""What a peer answered, in our own figures."""

import pytest
from paceline import FinishReason, Method

from bench.peers.answers import PeerAnswer


def answer(*pieces: tuple[list[int], int | None]) -> PeerAnswer:
    made = PeerAnswer(7, 5, 1, Method.GREEDY)
    for number, (tokens, drafted) in enumerate(pieces, 1):
        made.add(0.5 * number, tokens, drafted)
    return made


def test_tokens_and_times_are_those_of_the_arrivals():
    measured = answer(([1, 2], None), ([3], None)).finish(1.25, "stop")
    assert (measured.token_ids, measured.arrivals) == ((1, 2, 3), ((0.5, 2), (1.0, 1)))
    assert (measured.first_token_s, measured.total_s) == (0.5, 1.25)
    assert measured.complete.finish_reason is FinishReason.STOP
    assert measured.started.prompt_tokens == 5


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


def test_prompt_tokens_from_a_cache_stand_in_the_usage():
    assert answer(([1], 0)).finish(1.0, "stop", cached=3).complete.usage.cached_tokens == 3


def test_a_chunk_without_tokens_is_no_arrival():
    assert answer(([], None), ([1], None)).finish(1.0, "stop").arrivals == ((1.0, 1),)
