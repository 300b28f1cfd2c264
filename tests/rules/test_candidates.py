import numpy as np
import pytest
import torch

from services.contract.types import DraftTree, Proposal, VerifyMode
from services.verifier.rules import judge
from services.verifier.rules.candidates import first_accepted
from tests.rules import reference
from tests.rules.blocks import proposed, sampled_chain
from tests.rules.enumeration import Round, expected_accepted
from tests.rules.worlds import Drafter, World, sparse


def one_node(p, q, slots, u, without_replacement=False):
    """One node by the real rule; the chosen candidate and the residual at q's tokens."""
    tensors = [torch.tensor([row], dtype=torch.float64) for row in (p, q)]
    places, numbers = torch.tensor([slots]), torch.tensor([u], dtype=torch.float64)
    taken, kept = first_accepted(*tensors, places, numbers, torch.tensor([without_replacement]))
    return int(taken), kept[0].tolist()


def star(q, tokens, without_replacement):
    return DraftTree(
        tuple(tokens), (-1,) * len(tokens), (sparse(q),), Proposal.SAMPLED, without_replacement
    )


@pytest.mark.parametrize("without_replacement", [False, True])
def test_random_nodes_agree_with_the_paper_read_line_by_line(without_replacement):
    rng = np.random.default_rng(9)
    for _ in range(400):
        vocab = int(rng.integers(3, 8))
        p, q = rng.dirichlet(np.ones(vocab), 2)
        count = int(rng.integers(2, vocab))
        drawn = rng.choice(vocab, count, replace=not without_replacement, p=q).tolist()
        u = rng.random(count).tolist()
        chances, left = reference.candidate_thresholds(p, q, drawn, without_replacement)
        wanted = next((i for i in range(count) if u[i] < chances[i]), None)
        block = proposed(
            star(q, drawn, without_replacement),
            np.vstack([p] * (count + 1)),
            {(0, i): number for i, number in enumerate(u)},
        )
        outcome = judge([block])[0]
        assert outcome.path == (() if wanted is None else (wanted,))
        np.testing.assert_allclose(outcome.law, left if wanted is None else p, atol=1e-12)


def test_a_candidate_of_no_target_mass_is_never_accepted():
    assert one_node([0.0, 0.6], [0.5, 0.5], [0], [0.0]) == (-1, [0.0, pytest.approx(0.1)])


def test_a_number_at_the_ratio_itself_rejects():
    assert one_node([0.25, 0.75], [0.5, 0.5], [0], [0.5])[0] == -1
    assert one_node([0.25, 0.75], [0.5, 0.5], [0], [0.4999])[0] == 0


def test_a_target_that_rounds_above_one_is_taken_over_its_sum():
    above = [0.25 * 1.01, 0.75 * 1.01]
    assert one_node(above, [0.5, 0.5], [0], [0.502])[0] == -1
    assert one_node(above, [0.5, 0.5], [0], [0.498])[0] == 0


def test_a_token_drawn_twice_is_rejected_twice():
    assert one_node([0.25, 0.75], [0.5, 0.5], [0, 0, 1], [0.6, 0.0, 0.99])[0] == 2


def test_tokens_outside_the_drafts_support_keep_their_mass():
    # Half of the target lies outside; after a rejection 0.1 of 0.6 is left on the first token.
    assert one_node([0.3, 0.2], [0.2, 0.8], [1, 0], [0.9, 0.83])[0] == 1
    taken, kept = one_node([0.3, 0.2], [0.2, 0.8], [1, 0], [0.9, 0.84])
    assert taken == -1
    assert kept == [0.0, 0.0]


def test_the_padding_of_other_nodes_changes_nothing():
    alone = one_node([0.3, 0.2], [0.5, 0.5], [1], [0.9])
    taken, kept = first_accepted(
        torch.tensor([[0.3, 0.2, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64),
        torch.tensor([[0.5, 0.5, 0.0], [0.4, 0.3, 0.3]], dtype=torch.float64),
        torch.tensor([[1, -1], [0, 2]]),
        torch.tensor([[0.9, 0.0], [0.99, 0.9]], dtype=torch.float64),
        torch.tensor([False, True]),
    )
    assert taken.tolist() == [-1, 1]
    assert kept[0].tolist() == [*alone[1], 0.0]


def test_equal_laws_leave_the_target_itself_when_rounding_rejects():
    law = np.array([0.2, 0.3, 0.5])
    rounded = np.vstack([law * (1 - 1e-9)] * 3)
    unlucky = {(0, 0): 1 - 1e-10, (0, 1): 1 - 1e-10}
    by_tree = proposed(star(law, [0, 1], True), rounded, unlucky)
    by_chain = proposed(sampled_chain([law], [0]), rounded[:2], unlucky)
    by_block = proposed(sampled_chain([law], [0]), rounded[:2], unlucky, "BLOCK")
    for outcome in judge([by_tree, by_chain, by_block]):
        assert outcome.path == ()
        assert outcome.law.tolist() == pytest.approx(law, abs=1e-15)


def acceptance(p, q, count, without_replacement):
    """Chance that one of `count` candidates is accepted, straight from the recursion."""
    if count == 0 or not q.any():
        return 0.0
    total = 0.0
    for token in np.flatnonzero(q):
        hit = min(1.0, p[token] / q[token])
        rest = np.maximum(p - q, 0)
        if hit < 1:
            left = q.copy()
            if without_replacement:
                left[token] = 0.0
                left = left / left.sum() if left.any() else left
            later = acceptance(rest / rest.sum(), left, count - 1, without_replacement)
            hit += (1 - hit) * later
        total += q[token] * hit
    return total


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("without_replacement", [False, True])
def test_the_chance_that_a_candidate_is_accepted(count, without_replacement):
    world = World(12, vocab=5)
    drafter = Drafter.honest(world, without_replacement=without_replacement)
    # A lone child is a chain, which token-level rejection judges alike.
    one = Round(world, drafter, (-1,) * count, VerifyMode.STANDARD)
    wanted = acceptance(world.target(()), world.draft(()), count, without_replacement)
    assert expected_accepted(one) == pytest.approx(wanted, abs=1e-12)


def test_drawing_without_replacement_accepts_more_often():
    world = World(12, vocab=5)
    p, q = world.target(()), world.draft(())
    for count in (2, 3, 4):
        assert acceptance(p, q, count, True) > acceptance(p, q, count, False) + 1e-3
