"""Cutting draft trees: tokens, parents and rows of q stay together."""

import random

import pytest

from services.contract.types import DraftTree, Proposal, SparseRow
from services.verifier.cutting import cut, without_first
from services.verifier.trees import depths, paths


def row(parent):
    """A row of q that says whose it is."""
    return SparseRow((parent + 1,), (1.0,))


def sampled(tokens, parents=None):
    givers = sorted(set(parents)) if parents is not None else range(-1, len(tokens) - 1)
    rows = tuple(row(giver) for giver in givers)
    return DraftTree(tuple(tokens), parents, rows, Proposal.SAMPLED, without_replacement=True)


def test_depths_count_from_the_committed_text():
    assert depths(DraftTree()) == [0]
    assert depths(DraftTree((1, 2))) == [0, 1, 2]
    assert depths(DraftTree((1, 2, 3, 4), (-1, -1, 0, 2))) == [0, 1, 1, 2, 3]


def test_paths_hold_the_drafted_tokens_before_and_at_each_row():
    assert paths(DraftTree((7, 8))) == [(), (7,), (7, 8)]
    assert paths(DraftTree((7, 8, 9), (-1, -1, 1))) == [(), (7,), (8,), (8, 9)]


def test_a_chain_is_cut_with_its_rows():
    smaller, kept = cut(sampled([4, 5, 6]), 2)
    assert (smaller.token_ids, smaller.parents, kept) == ((4, 5), None, (0, 1))
    assert smaller.q == (row(-1), row(0))
    assert smaller.proposal is Proposal.SAMPLED
    assert smaller.without_replacement


def test_what_fits_is_left_as_it_is():
    tree = sampled([4, 5], (-1, 0))
    assert cut(tree, 2) == (tree, (0, 1))


def test_a_tree_loses_the_rows_of_parents_without_children():
    tree = sampled([1, 2, 3, 4, 5], (-1, -1, 0, 0, 2))
    smaller, kept = cut(tree, 2)
    assert (smaller.token_ids, smaller.parents) == ((1, 2, 3, 4), (-1, -1, 0, 0))
    assert (smaller.q, kept) == ((row(-1), row(0)), (0, 1, 2, 3))


def test_random_trees_keep_each_parents_own_row():
    rng = random.Random(3)
    for _ in range(300):
        size = rng.randrange(1, 12)
        parents = tuple(rng.randrange(-1, node) for node in range(size))
        tree = sampled(range(size), parents)
        room = rng.randrange(1, 5)
        smaller, kept = cut(tree, room)
        levels = depths(tree)
        assert kept == tuple(node for node in range(size) if levels[node + 1] <= room)
        for new, old in enumerate(kept):
            parent = smaller.parents[new]
            assert (-1 if parent < 0 else kept[parent]) == parents[old]
        givers = sorted({parents[old] for old in kept})
        assert smaller.q == tuple(row(giver) for giver in givers)


@pytest.mark.parametrize("parents", [None, (-1, 0, 0)])
def test_rows_that_do_not_match_the_parents_are_dropped_with_a_cut(parents):
    tree = DraftTree((1, 2, 3), parents, (row(-1),), Proposal.SAMPLED)
    assert cut(tree, 1)[0].q is None


def test_a_first_token_that_was_committed_takes_its_row_with_it():
    rest = without_first(sampled([4, 5, 6]))
    assert (rest.token_ids, rest.q) == ((5, 6), (row(0), row(1)))
    assert without_first(DraftTree((4,), (-1,))) == DraftTree(())
