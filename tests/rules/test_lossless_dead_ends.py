"""Texts behind which the target has no law: the law of all that is written before is its own."""

import pytest

from services.contract.types import VerifyMode
from tests.rules.enumeration import Round, round_distance
from tests.rules.worlds import Drafter, DyingWorld, chain

EXACT = 1e-12
DEAD = {
    "behind the first token": lambda text: text == (0,),
    "behind any two": lambda text: len(text) == 2,
    "at the leaf": lambda text: len(text) == 3 and text[-1] != 1,
    "from the start": lambda text: text == (),
    "here and there": lambda text: text in ((1,), (0, 2), (2, 0), (2, 2, 2)),
}


@pytest.mark.parametrize("dead", DEAD)
@pytest.mark.parametrize("mode", [VerifyMode.STANDARD, VerifyMode.BLOCK])
def test_a_dead_end_in_a_chain_leaves_the_law_before_it_alone(mode, dead):
    for seed in (40, 41):
        world = DyingWorld(seed, DEAD[dead])
        for sizes in ((), (1, 2), (2, 1)):
            one = Round(world, Drafter.honest(world), chain(3), mode, sizes)
            assert round_distance(one) < EXACT


@pytest.mark.parametrize("dead", DEAD)
@pytest.mark.parametrize("without_replacement", [False, True])
def test_a_dead_end_in_a_tree_leaves_the_law_before_it_alone(without_replacement, dead):
    world = DyingWorld(42, DEAD[dead])
    drafter = Drafter.honest(world, without_replacement=without_replacement)
    for shape in ((-1, -1, 0, 0), (-1, -1, 0, 1), (-1, 0, -1, 1)):
        assert round_distance(Round(world, drafter, shape, VerifyMode.BLOCK)) < EXACT
