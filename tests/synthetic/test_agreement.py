"""At which places target and drafter agree."""

from __future__ import annotations

import pytest

from services.engine.synthetic.agreement import Agreement, agreements, mixed


def test_a_round_that_emitted_all_it_could_counts_the_bonus_as_agreement():
    assert agreements([6], 5) == (True,) * 6


def test_any_other_round_ends_in_one_place_without_agreement():
    assert agreements([1, 3], 5) == (False, True, True, False)


@pytest.mark.parametrize("emitted", [0, 7, -1])
def test_what_no_round_emits_is_refused(emitted):
    with pytest.raises(ValueError, match="1 to 6"):
        agreements([3, emitted], 5)


def test_a_list_is_the_same_in_every_world_and_repeats():
    agreement = Agreement(rate=0.0, listed=(True, False, True))
    for world in range(3):
        places = [agreement.at(world, position) for position in range(6)]
        assert places == [True, False, True] * 2


def test_a_list_that_does_not_repeat_is_followed_by_draws():
    listed = (True, False)
    always = Agreement(1.0, listed=listed, repeat=False)
    never = Agreement(0.0, listed=listed, repeat=False)
    assert [always.at(3, position) for position in range(5)] == [True, False, True, True, True]
    assert [never.at(3, position) for position in range(5)] == [True, False, False, False, False]


@pytest.mark.parametrize("rate", [0.0, 0.25, 0.8, 1.0])
def test_draws_agree_as_often_as_the_rate_says(rate):
    agreement = Agreement(rate, seed=4)
    places = [agreement.at(world, position) for world in range(20) for position in range(500)]
    assert sum(places) / len(places) == pytest.approx(rate, abs=0.02)


def test_worlds_and_seeds_draw_independently():
    one, other = Agreement(0.5, seed=1), Agreement(0.5, seed=2)
    draws = [
        tuple(agreement.at(world, position) for position in range(64))
        for agreement in (one, other)
        for world in range(8)
    ]
    assert len(set(draws)) == len(draws)


def test_a_draw_depends_on_its_numbers_and_their_order_alone():
    assert mixed(1, 2, 3) == mixed(1, 2, 3)
    assert mixed(1, 2, 3) != mixed(1, 3, 2)
