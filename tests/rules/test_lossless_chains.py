import pytest

from services.contract.types import Proposal, VerifyMode
from tests.rules.enumeration import Round, distance, in_rounds, round_distance
from tests.rules.worlds import Drafter, World, chain

EXACT, CHAIN = 1e-12, chain(3)
WORLDS = [World(seed, holes=seed % 2 == 1) for seed in range(6)]
both_rules = pytest.mark.parametrize("mode", [VerifyMode.STANDARD, VerifyMode.BLOCK])


def is_exact(worlds, mode, shape=CHAIN, sizes=(), **changes):
    rounds = [Round(one, Drafter.honest(one, **changes), shape, mode, sizes) for one in worlds]
    return max(map(round_distance, rounds)) < EXACT


@both_rules
@pytest.mark.parametrize("world", WORLDS)
def test_a_chain_leaves_the_law_of_the_text_alone(world, mode):
    assert is_exact([world], mode)


@both_rules
@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (1, 1, 1)])
def test_chained_blocks_without_a_bonus_leave_the_law_alone(sizes, mode):
    assert is_exact(WORLDS[:4], mode, sizes=sizes)


@both_rules
def test_a_text_of_many_rounds_has_the_law_of_the_target(mode):
    for world in WORLDS[:2]:
        one = Round(world, Drafter.honest(world), chain(2), mode)
        assert distance(in_rounds(one, 4), world) < EXACT


@both_rules
def test_a_draft_may_end_behind_any_token_by_its_content(mode):
    assert is_exact(WORLDS, mode, ends_after=lambda text: sum(text) % 3 == 1)


@both_rules
@pytest.mark.parametrize("sizes", [(2,), (1, 1)])
def test_tokens_sent_at_fixed_counts_and_a_last_unsure_one_leave_the_law_alone(sizes, mode):
    """A token to which the draft gave little mass ends the draft."""
    for world in WORLDS:
        unsure = lambda text, own=world: own.draft(text[:-1])[text[-1]] < 0.3  # noqa: E731
        assert is_exact([world], mode, sizes=sizes, ends_after=unsure)


@both_rules
@pytest.mark.parametrize("proposal", [Proposal.ONE_HOT, Proposal.COUPLED])
def test_a_draft_without_q_leaves_the_law_alone_whatever_it_is(proposal, mode):
    assert is_exact(WORLDS, mode, proposal=proposal)


@both_rules
def test_an_empty_draft_is_plain_sampling(mode):
    assert is_exact(WORLDS[:1], mode, ())
