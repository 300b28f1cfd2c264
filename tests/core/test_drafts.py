from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.drafts import (
    NO_ROW,
    Piece,
    after_bonus,
    chain_tokens,
    depth,
    drop_front,
    retract_hash,
    take,
    with_its_rows,
)
from services.contract.types import EMPTY_HASH, DraftTree, Proposal, SparseRow, extend_hash

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=12).map(tuple)


def sampled(*tokens: int) -> Piece:
    rows = tuple(SparseRow((token,), (1.0,)) for token in tokens)
    return Piece(DraftTree(tokens, q=rows, proposal=Proposal.SAMPLED), draft_ms=len(tokens))


def one_hot(*tokens: int) -> Piece:
    return Piece(DraftTree(tokens), draft_ms=len(tokens))


@given(TOKENS, TOKENS)
def test_retracting_undoes_extending(prefix, tokens):
    before = extend_hash(EMPTY_HASH, prefix)
    assert retract_hash(extend_hash(before, tokens), tokens) == before


@given(st.lists(TOKENS.filter(len), max_size=5), st.integers(0, 20))
def test_taking_splits_a_chain_without_losing_a_token(pieces, count):
    tail = tuple(one_hot(*tokens) for tokens in pieces)
    block, rest = take(tail, count)
    assert block.tree.token_ids + chain_tokens(rest) == chain_tokens(tail)
    assert len(block.tree) == min(count, len(chain_tokens(tail)))


@given(st.lists(TOKENS.filter(len), max_size=5), st.integers(0, 20))
def test_a_token_keeps_its_source_wherever_chains_are_cut_and_joined(pieces, count):
    said = {token: token % 9 for tokens in pieces for token in tokens}
    of = lambda tokens: bytes([said[token] for token in tokens])  # noqa: E731
    tail = tuple(Piece(DraftTree(tokens), sources=of(tokens)) for tokens in pieces)
    block, rest = take(tail, count)
    for piece in (block, *rest):
        assert piece.sources == of(piece.tree.token_ids)
    for piece in tail:
        assert drop_front(piece, 1).sources == of(piece.tree.token_ids[1:])


def test_a_cut_keeps_each_token_with_its_own_row_and_share_of_time():
    block, (rest,) = take((sampled(1, 2, 3),), 2)
    assert [row.token_ids for row in block.tree.q] == [(1,), (2,)]
    assert [row.token_ids for row in rest.tree.q] == [(3,)]
    assert (block.draft_ms, rest.draft_ms) == (2.0, 1.0)


def test_a_block_never_mixes_proposals():
    block, rest = take((one_hot(1), sampled(2)), 5)
    assert block.tree.token_ids == (1,)
    assert rest == (sampled(2),)


def test_a_tree_is_taken_whole_and_alone():
    tree = Piece(DraftTree((5, 6, 7), parents=(-1, -1, 0)))
    block, rest = take((one_hot(1), tree), 5)
    assert (block.tree.token_ids, rest) == ((1,), (tree,))
    assert take((tree,), 1) == (tree, ())


def test_the_tail_survives_a_bonus_that_it_starts_with():
    assert chain_tokens(after_bonus((one_hot(4, 5), one_hot(6)), 4)) == (5, 6)
    assert after_bonus((one_hot(4), one_hot(6)), 4) == (one_hot(6),)
    assert after_bonus((one_hot(4),), 9) is None


def test_dropping_from_the_front_drops_rows_too():
    assert drop_front(sampled(1, 2, 3), 1).tree == sampled(2, 3).tree


def rows(*tokens: int) -> tuple[SparseRow, ...]:
    return tuple(SparseRow((token,), (1.0,)) for token in tokens)


@pytest.mark.parametrize(
    ("given_rows", "kept"),
    [
        (None, (NO_ROW, NO_ROW)),
        ((), (NO_ROW, NO_ROW)),
        (rows(1), (*rows(1), NO_ROW)),
        (rows(1, 2), rows(1, 2)),
        (rows(1, 2, 3), rows(1, 2)),
    ],
)
@pytest.mark.parametrize("parents", [None, (-1, 0)])
def test_a_sampled_chain_has_a_row_for_every_token(given_rows, kept, parents):
    tree = DraftTree((1, 2), parents, q=given_rows, proposal=Proposal.SAMPLED)
    assert with_its_rows(tree) == DraftTree((1, 2), q=kept, proposal=Proposal.SAMPLED)


@pytest.mark.parametrize("proposal", [Proposal.ONE_HOT, Proposal.COUPLED])
@pytest.mark.parametrize("parents", [None, (-1, -1)])
def test_what_was_not_sampled_has_no_rows(proposal, parents):
    tree = DraftTree((1, 2), parents, proposal=proposal)
    assert with_its_rows(tree) is tree
    assert with_its_rows(replace(tree, q=rows(1))) == tree


def test_a_sampled_tree_keeps_its_rows_as_they_came():
    tree = DraftTree((1, 2), (-1, -1), q=rows(1), proposal=Proposal.SAMPLED)
    assert with_its_rows(tree) is tree


def test_a_missing_row_costs_no_other_token_its_own():
    lacking = Piece(with_its_rows(DraftTree((5,), proposal=Proposal.SAMPLED)))
    for tail in ((lacking, sampled(1, 2)), (sampled(1, 2), lacking)):
        block, rest = take(tail, 3)
        aligned = {5: NO_ROW, 1: rows(1)[0], 2: rows(2)[0]}
        assert block.tree.q == tuple(aligned[token] for token in block.tree.token_ids)
        assert not rest


def test_depth_is_the_longest_path():
    assert depth(DraftTree()) == 0
    assert depth(DraftTree((1, 2, 3))) == 3
    assert depth(DraftTree((1, 2, 3, 4), (-1, -1, 0, 2))) == 3
