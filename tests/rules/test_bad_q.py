import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from services.contract.types import DraftTree, Proposal, SparseRow, VerifyMode
from services.engine.noise import Stream
from services.verifier.rules import judge
from services.verifier.rules.rows import gather_laws, is_law, read_blocks, read_rows
from tests.rules.blocks import P, Q, proposed, sampled_chain
from tests.rules.worlds import sparse

HALVES = SparseRow((0, 1), (0.5, 0.5))
ALWAYS = (0.0,) * 3
both_rules = pytest.mark.parametrize("mode", ["STANDARD", "BLOCK"])


# --- what counts as a usable row --------------------------------------------------


@pytest.mark.parametrize(
    "row",
    [
        SparseRow((0, 1, 2), (0.5, 0.25, 0.25)),
        SparseRow((2,), (1.0,)),
        SparseRow((1, 0), (1.0, 0.0)),
        SparseRow((0, 1), (0.5, 0.5 + 9e-5)),
    ],
)
def test_a_law_is_used(row):
    assert is_law(row, 3)


NO_MASSES = [(1.0,), (0.5, 0.5 + 2e-4), (0.5, 0.5 - 2e-4), (1.5, -0.5), (math.nan, 1.0)]
NO_MASSES += [(1.0, math.nan), (math.inf, 0.5), (math.inf, -math.inf)]
NO_IDS = [SparseRow((), ()), *(SparseRow(ids, (0.5, 0.5)) for ids in ((0, 0), (0, 3), (-1, 0)))]


@pytest.mark.parametrize("row", [*NO_IDS, *(SparseRow((0, 1), masses) for masses in NO_MASSES)])
def test_what_is_no_law_is_not_used(row):
    assert not is_law(row, 3)


def tree_of(tokens, parents, *rows, without_replacement=False):
    return DraftTree(tokens, parents, rows, Proposal.SAMPLED, without_replacement)


@pytest.mark.parametrize(
    ("tree", "usable"),
    [
        (tree_of((0, 1), None, HALVES, HALVES), [0, 1]),
        (tree_of((0, 2), None, HALVES, HALVES), [0]),
        (tree_of((0, 1), None, SparseRow((0, 1), (0.0, 1.0)), HALVES), [1]),
        (tree_of((0, 1), None, HALVES), [0]),
        (tree_of((0, 1, 0), (-1, -1, 1), HALVES, HALVES), [0, 2]),
        (tree_of((0, 0), (-1, -1), HALVES), [0]),
        (tree_of((0, 0), (-1, -1), HALVES, without_replacement=True), []),
        (tree_of((0, 1), (-1, -1), HALVES, without_replacement=True), [0]),
        (tree_of((0, 2), (-1, -1), HALVES), []),
    ],
)
def test_a_row_must_have_had_mass_for_every_child_in_its_turn(tree, usable):
    read = read_rows(tree, 3)
    assert list(read.usable) == usable
    assert read.bad == len(set(tree.parents or range(len(tree)))) - len(usable)


@pytest.mark.parametrize("proposal", [Proposal.ONE_HOT, Proposal.COUPLED])
def test_a_draft_that_was_not_sampled_has_no_bad_rows(proposal):
    tree = DraftTree((0, 1), None, None, proposal)
    block = proposed(tree, P[:3], ALWAYS, own=(0.1, 0.65, 0.0))
    assert judge([block])[0].bad_q_rows == 0


# --- what becomes of the block ----------------------------------------------------


@both_rules
def test_the_targets_own_sample_decides_from_the_bad_row_on(mode):
    # Own samples by inversion: P[1] at 0.65 is token 1, P[2] at 0.3 is token 1.
    tree = sampled_chain(Q, (1, 1, 1))
    broken = replace(tree, q=(tree.q[0], SparseRow((), ()), tree.q[2]))
    outcome = judge([proposed(broken, P, (0.99, 0.99, 0.99), mode, (None, 0.65, 0.3))])[0]
    assert outcome.path == (0, 1, 2)
    assert outcome.all_accepted
    assert outcome.final == (Stream.BONUS, 3)
    assert outcome.bad_q_rows == 1


@both_rules
def test_an_own_sample_that_departs_is_emitted(mode):
    tree = sampled_chain(Q, (1, 0, 2))
    broken = replace(tree, q=(tree.q[0], SparseRow((), ()), tree.q[2]))
    outcome = judge([proposed(broken, P, (0.99, 0.99, 0.99), mode, (None, 0.95, None))])[0]
    assert outcome.path == (0,)
    assert not outcome.all_accepted
    assert outcome.law.tolist() == [0, 0, 1]
    assert outcome.final == (Stream.RESIDUAL, 1)


def test_a_block_verification_ends_before_the_bad_row():
    # Vector A of the literature accepts all three by its last token alone; without the
    # third row the first two stand as a block of two with thresholds 0 and 0.8.
    tree = sampled_chain(Q, (0, 0, 2))
    broken = replace(tree, q=tree.q[:2])
    rejected = judge([proposed(broken, P, (0.9, 0.9, 0.3), "BLOCK", (None, None, 0.9))])[0]
    assert (rejected.path, rejected.final) == ((), (Stream.RESIDUAL, 0))
    accepted = judge([proposed(broken, P, (0.9, 0.79, 0.3), "BLOCK", (None, None, 0.9))])[0]
    assert (accepted.path, accepted.all_accepted) == ((0, 1, 2), True)


def test_a_bad_row_off_the_path_costs_nothing():
    tree = tree_of((0, 1, 0, 0), (-1, -1, 0, 1), sparse(Q[0]), SparseRow((), ()), sparse(Q[1]))
    block = proposed(tree, np.vstack([P, P[:1]]), {(0, 0): 0.9, (0, 1): 0.0, (2, 0): 0.0})
    outcome = judge([block])[0]
    assert outcome.path == (1, 3)
    assert outcome.bad_q_rows == 1


def test_a_q_beyond_the_targets_vocabulary_is_bad_and_a_smaller_one_is_not():
    beyond = tree_of((0,), None, SparseRow((0, 7), (0.5, 0.5)))
    outcome = judge([proposed(beyond, P[:2], (), own=(0.1,))])[0]
    assert (outcome.path, outcome.bad_q_rows) == ((0,), 1)
    smaller = tree_of((0,), None, SparseRow((0,), (1.0,)))
    outcome = judge([proposed(smaller, P[:2], (0.5,))])[0]
    assert outcome.path == ()
    assert outcome.law.tolist() == pytest.approx([0, 0.625, 0.375])


@both_rules
def test_the_true_q_is_what_was_sent_over_its_sum(mode):
    row = SparseRow((0, 1), (0.5 * 1.00009, 0.5 * 1.00009))
    block = proposed(tree_of((0,), None, row), np.full((2, 2), 0.5), (1 - 1e-6,), mode)
    assert judge([block])[0].path == (0,)


def test_every_gathered_row_is_a_law_and_the_padding_has_no_target_mass():
    long = sampled_chain(Q, (0, 0, 2))
    short = tree_of((0,), None, SparseRow((0,), (1.0,)))
    laws = gather_laws(read_blocks([proposed(long, P, ALWAYS), proposed(short, P[:2], ALWAYS)]))
    assert laws.q.sum(-1).tolist() == pytest.approx([1] * 5)
    assert laws.log_p.exp().sum(-1).tolist() == pytest.approx([1, 1, 1, 0.2, 0])


# --- batches and numbers ----------------------------------------------------------


def random_block(rng, vocab=6):
    """A block of any kind, and the keys that it asks for."""
    size = int(rng.integers(0, 6))
    parents = tuple(int(rng.integers(-1, node)) for node in range(size))
    if rng.random() < 0.5:
        parents = tuple(range(-1, size - 1)) if rng.random() < 0.5 else None
    laws = rng.dirichlet(np.ones(vocab) / 2, size)
    rows = [sparse(np.where(law > 0.02, law, 0) / law[law > 0.02].sum()) for law in laws]
    rows = [row if rng.random() < 0.9 else SparseRow((), ()) for row in rows]
    tree = DraftTree(
        tuple(rng.integers(0, vocab, size).tolist()),
        parents,
        tuple(rows),
        Proposal.SAMPLED if rng.random() < 0.9 else Proposal.ONE_HOT,
        bool(rng.random() < 0.5),
    )
    asked, seed = [], int(rng.integers(2**32))

    def uniform(stream, row, candidate):
        asked.append((stream, row, candidate))
        return float(np.random.default_rng([seed, stream, row, candidate]).random())

    p = rng.dirichlet(np.ones(vocab), size + 1)
    mode = VerifyMode.BLOCK if rng.random() < 0.5 else VerifyMode.STANDARD
    block = proposed(tree, p, ())
    return replace(block, uniform=uniform, mode=mode), asked


def test_a_ragged_batch_is_judged_as_each_block_alone():
    rng = np.random.default_rng(11)
    blocks = [random_block(rng)[0] for _ in range(300)]
    together = judge(blocks)
    for block, outcome in zip(blocks, together, strict=True):
        alone = judge([block])[0]
        assert replace(outcome, law=None) == replace(alone, law=None)
        np.testing.assert_allclose(outcome.law, alone.law, atol=1e-12)
    ways = {(bool(each.path), each.all_accepted, each.final[0]) for each in together}
    assert len(ways) == 4


def test_an_empty_batch_has_no_outcomes():
    assert judge([]) == []


def test_no_number_is_asked_for_twice_and_the_last_one_is_new():
    rng = np.random.default_rng(12)
    for _ in range(300):
        block, asked = random_block(rng)
        stream, row = judge([block])[0].final
        keys = [*asked, (stream, row, 0)]
        assert len(set(keys)) == len(keys)


def test_float32_rows_give_nearly_the_same_law():
    rng = np.random.default_rng(13)
    for _ in range(100):
        block, _ = random_block(rng)
        rough, fine = judge([replace(block, log_p=block.log_p.float()), block])
        assert rough.path == fine.path
        assert rough.law.dtype is torch.float64
        np.testing.assert_allclose(rough.law, fine.law, atol=1e-5)


def test_a_chain_given_with_parents_is_a_chain():
    for mode in ("STANDARD", "BLOCK"):
        tree = sampled_chain(Q, (0, 0, 2))
        plain = judge([proposed(tree, P, (0.9, 0.9, 0.3), mode)])[0]
        spelled = judge([proposed(replace(tree, parents=(-1, 0, 1)), P, (0.9, 0.9, 0.3), mode)])[0]
        assert plain.path == spelled.path
        assert torch.equal(plain.law, spelled.law)


@both_rules
def test_a_target_without_a_law_gives_none(mode):
    lost = np.full_like(P, np.nan)
    sampled = proposed(sampled_chain(Q, (0, 0, 2)), lost, ALWAYS, mode, own=(0.5,))
    unsampled = proposed(DraftTree((0,)), lost[:2], ALWAYS, mode, own=(0.5,))
    empty = proposed(DraftTree(), lost[:1], (), mode)
    for outcome in judge([sampled, unsampled, empty]):
        assert outcome.path == ()
        assert outcome.law.isnan().all()
