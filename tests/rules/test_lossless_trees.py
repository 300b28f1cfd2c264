import pytest

from services.contract.types import Proposal, VerifyMode
from tests.rules.enumeration import Round, distance, in_rounds, round_distance
from tests.rules.worlds import Drafter, World

EXACT = 1e-12
SHAPES = {
    "three leaves": (-1, -1, -1),
    "two chains": (-1, -1, 0, 1),
    "a trunk with leaves beside it": (-1, -1, 0, 0, 2, 2),
    "two by two": (-1, -1, 0, 0, 1, 1),
    "siblings apart": (-1, 0, -1, 2, 0),
}
either_way = pytest.mark.parametrize("without_replacement", [False, True])


@either_way
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_tree_leaves_the_law_of_the_text_alone(shape, without_replacement):
    for seed in range(2):
        world = World(20 + seed, holes=seed == 1)
        drafter = Drafter.honest(world, without_replacement=without_replacement)
        assert round_distance(Round(world, drafter, shape, VerifyMode.STANDARD)) < EXACT


@either_way
def test_a_text_of_many_trees_has_the_law_of_the_target(without_replacement):
    world = World(22)
    drafter = Drafter.honest(world, without_replacement=without_replacement)
    one = Round(world, drafter, (-1, -1, 0), VerifyMode.BLOCK)
    assert distance(in_rounds(one, 3), world) < EXACT


def test_a_tree_may_lose_the_end_of_its_draw_order():
    # The fourth node, a second child, is kept or not by what its ancestors are.
    world = World(23)
    drafter = Drafter.honest(
        world,
        without_replacement=True,
        ends_after=lambda text: len(text) == 3 and sum(text[:-1]) % 2 == 1,
    )
    one = Round(world, drafter, (-1, 0, 1, 1), VerifyMode.STANDARD)
    assert round_distance(one) < EXACT


@pytest.mark.parametrize("proposal", [Proposal.ONE_HOT, Proposal.COUPLED])
def test_a_tree_without_q_leaves_the_law_alone_whatever_it_is(proposal):
    world = World(24)
    drafter = Drafter.honest(world, proposal=proposal)
    for shape in ((-1, -1, 0), (-1, -1, 1, 1)):
        assert round_distance(Round(world, drafter, shape, VerifyMode.STANDARD)) < EXACT
