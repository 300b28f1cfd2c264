import pytest

from services.contract.types import Proposal, VerifyMode
from tests.rules.enumeration import Round, distance, in_rounds, round_distance
from tests.rules.worlds import Drafter, World, chain

EXACT = 1e-12
WORLDS = [World(seed, holes=seed % 2 == 1) for seed in range(6)]
both_rules = pytest.mark.parametrize("mode", [VerifyMode.STANDARD, VerifyMode.BLOCK])


@both_rules
@pytest.mark.parametrize("world", WORLDS)
def test_a_chain_leaves_the_law_of_the_text_alone(world, mode):
    assert round_distance(Round(world, Drafter.honest(world), chain(3), mode)) < EXACT


@both_rules
@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (1, 1, 1)])
def test_chained_blocks_without_a_bonus_leave_the_law_alone(sizes, mode):
    for world in WORLDS[:4]:
        one = Round(world, Drafter.honest(world), chain(3), mode, sizes)
        assert round_distance(one) < EXACT


@both_rules
def test_a_text_of_many_rounds_has_the_law_of_the_target(mode):
    for world in WORLDS[:2]:
        one = Round(world, Drafter.honest(world), chain(2), mode)
        assert distance(in_rounds(one, 4), world) < EXACT


@both_rules
def test_a_draft_may_end_behind_any_token_by_its_content(mode):
    for world in WORLDS:
        drafter = Drafter.honest(world, ends_after=lambda text: sum(text) % 3 == 1)
        assert round_distance(Round(world, drafter, chain(3), mode)) < EXACT


def is_unsure(world):
    """Whether the draft gave the last token of a text little mass: the end of a draft."""
    return lambda text: world.draft(text[:-1])[text[-1]] < 0.3


@both_rules
@pytest.mark.parametrize("sizes", [(2,), (1, 1)])
def test_tokens_sent_at_fixed_counts_and_a_last_unsure_one_leave_the_law_alone(sizes, mode):
    for world in WORLDS:
        drafter = Drafter.honest(world, ends_after=is_unsure(world))
        assert round_distance(Round(world, drafter, chain(3), mode, sizes)) < EXACT


@both_rules
@pytest.mark.parametrize("proposal", [Proposal.ONE_HOT, Proposal.COUPLED])
def test_a_draft_without_q_leaves_the_law_alone_whatever_it_is(proposal, mode):
    for world in WORLDS:
        drafter = Drafter.honest(world, proposal=proposal)
        assert round_distance(Round(world, drafter, chain(3), mode)) < EXACT


@both_rules
def test_an_empty_draft_is_plain_sampling(mode):
    world = WORLDS[0]
    assert round_distance(Round(world, Drafter.honest(world), (), mode)) < EXACT
