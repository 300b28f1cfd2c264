import math

import numpy as np
import pytest
import torch

from services.contract.types import DraftTree, Proposal, SparseRow, VerifyMode
from services.verifier.rules import block, judge
from tests.rules import reference
from tests.rules.blocks import Numbers, P, Q, judged_chain, proposed
from tests.rules.enumeration import Round, end_of, expected_accepted
from tests.rules.worlds import Drafter, World, chain, sparse, texts


def reach_and_thresholds(p, q, tokens):
    """p_i and h_i of one chain, by the real functions; laws as [rows, V] arrays."""
    ratio = np.array([[p[i][x] / q[i][x] for i, x in enumerate(tokens)]])
    log_reach = block.log_reach(torch.from_numpy(ratio).log())
    after_p = torch.from_numpy(np.array([*p[1 : len(tokens)], [0.0] * len(p[0])])).log()[None]
    after_q = torch.from_numpy(np.array([*q[1 : len(tokens)], np.eye(len(p[0]))[0]]))[None]
    return log_reach.exp()[0].tolist(), block.thresholds(log_reach, after_p, after_q)[0].tolist()


@pytest.mark.parametrize(
    ("tokens", "u", "reach", "h", "accepted", "law"),
    [
        ((0, 0, 2), (0.9, 0.9, 0.3), (0.4, 0.8, 1), (0, 0.5, 1), 3, (0.1, 0.7, 0.2)),
        ((0, 1, 2), (0.1, 0.9, 0.9), (0.4, 0.1, 0.25), (0, 0, 0.25), 0, (0, 2 / 3, 1 / 3)),
        ((1, 0, 2), (0.99,) * 3, (1, 1, 1), (1, 1, 1), 3, (0.1, 0.7, 0.2)),
        ((0, 1, 0), (0.95,) * 3, (0.4, 0.1, 0.0625), (0, 0, 0.0625), 0, (0, 2 / 3, 1 / 3)),
    ],
)
def test_the_vectors_of_the_literature_come_out(tokens, u, reach, h, accepted, law):
    found_reach, found_h = reach_and_thresholds(P, Q, tokens)
    assert found_reach == pytest.approx(reach, abs=1e-15)
    assert found_h == pytest.approx(h, abs=1e-15)
    outcome = judged_chain(P, Q, tokens, u, "BLOCK")
    assert outcome.path == tuple(range(accepted))
    assert outcome.law.tolist() == pytest.approx(law, abs=1e-15)


def test_the_last_acceptance_counts_and_not_the_first_rejection():
    h = torch.tensor([[0.1, 0.9, 0.2, 0.0]], dtype=torch.float64)
    u = torch.tensor([[0.5, 0.5, 0.5, 0.0]], dtype=torch.float64)
    assert block.accepted(h, u).tolist() == [2]


def test_a_number_at_the_threshold_itself_rejects():
    h = torch.tensor([[0.5]], dtype=torch.float64)
    for u, accepted in ((0.5, 0), (np.nextafter(0.5, 0), 1)):
        assert block.accepted(h, torch.tensor([[u]])).tolist() == [accepted]


def test_nothing_behind_a_token_without_target_mass_is_accepted():
    p = np.array([[0.5, 0.5], [0.0, 1.0], [0.9, 0.1], [0.5, 0.5]])
    q = np.array([[0.5, 0.5], [0.5, 0.5], [0.1, 0.9]])
    outcome = judged_chain(p, q, (0, 0, 0), (0.99, 0.0, 0.0), "BLOCK")
    assert outcome.path == (0,)
    assert outcome.law.tolist() == [0.0, 1.0]


def test_random_blocks_agree_with_the_paper_read_line_by_line():
    rng = np.random.default_rng(8)
    for _ in range(300):
        numbers = Numbers(rng, length=int(rng.integers(1, 6)), vocab=int(rng.integers(2, 7)))
        p, q, x, u = numbers.p, numbers.q, numbers.x, numbers.u
        h, reach = reference.block_thresholds(p, q, x), [1.0, *reference.block_reach(p, q, x)]
        found_reach, found_h = reach_and_thresholds(p, q, x)
        assert found_reach == pytest.approx(reach[1:], rel=1e-12)
        assert found_h == pytest.approx(h, abs=1e-12)
        accepted = reference.block_accepted(h, u)
        left = (
            p[-1]
            if accepted == len(x)
            else reference.residual(p[accepted], q[accepted], reach[accepted])
        )
        outcome = judged_chain(p, q, x, u, "BLOCK")
        assert len(outcome.path) == accepted
        np.testing.assert_allclose(outcome.law, left, atol=1e-12)


def test_the_reach_of_a_long_block_neither_overflows_nor_vanishes():
    log_ratio = torch.tensor([[-800.0, 900.0, -800.0, 799.5, 1e4]], dtype=torch.float64)
    assert block.log_reach(log_ratio)[0].tolist() == pytest.approx([-800, 0, -800, -0.5, 0])


def test_a_lost_token_cannot_be_made_good_by_later_ones():
    log_ratio = torch.tensor([[-math.inf, 5.0, 1e3]], dtype=torch.float64)
    assert block.log_reach(log_ratio)[0].tolist() == [-math.inf] * 3


def test_a_reach_near_nothing_leaves_a_law_all_the_same():
    p = np.array([[1e-312, 1.0], [0.5, 0.5], [0.5, 0.5]])
    rows = (sparse(np.array([0.5, 0.5])), SparseRow((0, 1), (1.0, 0.0)))
    tree = DraftTree((0, 0), None, rows, Proposal.SAMPLED)
    outcome = judge([proposed(tree, p, (0.0, 0.5), "BLOCK")])[0]
    assert outcome.path == (0,)
    assert outcome.law.tolist() == [0.0, 1.0]


def test_a_law_outside_the_drafts_support_is_all_residual():
    # The target's 0.7 outside the two known tokens is never looked at.
    log_p = torch.tensor([[[0.1, 0.2]]], dtype=torch.float64).log()
    q = torch.tensor([[[0.5, 0.5]]], dtype=torch.float64)
    h = block.thresholds(torch.tensor([[math.log(0.5)]], dtype=torch.float64), log_p, q)
    assert float(h) == pytest.approx(0.35 / (0.35 + 0.5), abs=1e-15)


def test_equal_laws_behind_a_full_reach_accept_for_certain():
    log_p = torch.tensor([[[0.25, 0.75]]], dtype=torch.float64).log()
    h = block.thresholds(torch.zeros(1, 1, dtype=torch.float64), log_p, log_p.exp())
    assert float(h) == 1.0


def test_rounding_above_one_makes_no_threshold_negative():
    log_p = torch.tensor([[[0.25, 0.75]]], dtype=torch.float64).log() + 1e-7
    half = torch.tensor([[math.log(0.5)]], dtype=torch.float64)
    assert float(block.thresholds(half, log_p, log_p.exp())) == 0.0


# --- by enumeration ---------------------------------------------------------------


def both_rules(world, drafter, length):
    rounds = [
        Round(world, drafter, chain(length), mode)
        for mode in (VerifyMode.STANDARD, VerifyMode.BLOCK)
    ]
    return tuple(expected_accepted(one) for one in rounds)


class Fixed(World):
    """One target and one draft law, whatever the context."""

    def __init__(self, p, q):
        super().__init__(0, len(p))
        self.target = lambda text: np.array(p)
        self.draft = lambda text: np.array(q)
        self.log_p = lambda text: torch.tensor(p, dtype=torch.float64).log()


def test_the_papers_example_accepts_10_9_and_11_9_tokens():
    world = Fixed([1 / 3, 2 / 3], [2 / 3, 1 / 3])
    by_token, by_block = both_rules(world, Drafter.honest(world), 2)
    assert by_token == pytest.approx(10 / 9, abs=1e-14)
    assert by_block == pytest.approx(11 / 9, abs=1e-14)


def test_a_block_never_accepts_fewer_tokens_on_average():
    gains = []
    for seed in range(60):
        world = World(seed, holes=seed % 2 == 0)
        by_token, by_block = both_rules(world, Drafter.honest(world), 1 + seed % 3)
        assert by_block >= by_token - 1e-12
        gains.append(by_block - by_token)
    assert max(gains) > 0.05


def test_one_hot_laws_gain_nothing():
    world = World(3)
    certain = {length: np.eye(3)[length % 2] for length in range(3)}
    drafter = Drafter(lambda text: certain[len(text)], lambda text: sparse(certain[len(text)]))
    by_token, by_block = both_rules(world, drafter, 3)
    assert by_block == pytest.approx(by_token, abs=1e-12)
    assert by_token > 0


@pytest.mark.parametrize("seed", range(4))
def test_a_prefix_survives_with_the_chance_of_its_reach(seed):
    world = World(seed, holes=seed > 1)
    one = Round(world, Drafter.honest(world), chain(3), VerifyMode.BLOCK)
    drawn, kept = {}, {}
    for case, outcome in one.first_blocks():
        for prefix in texts(case.tree, ())[1:]:
            drawn[prefix] = drawn.get(prefix, 0) + case.weight
            survives = len(end_of(case, outcome)) >= len(prefix)
            kept[prefix] = kept.get(prefix, 0) + case.weight * survives
    for prefix, weight in drawn.items():
        p = [world.target(prefix[:i]) for i in range(len(prefix))]
        q = [world.draft(prefix[:i]) for i in range(len(prefix))]
        assert kept[prefix] / weight == pytest.approx(
            reference.block_reach(p, q, prefix)[-1], abs=1e-11
        )
