"""How deep the nodes of a draft stand, and behind which of its tokens."""

from services.contract.types import DraftTree
from services.verifier.trees import depths, paths


def test_depths_count_from_the_committed_text():
    assert depths(DraftTree()) == [0]
    assert depths(DraftTree((1, 2))) == [0, 1, 2]
    assert depths(DraftTree((1, 2, 3, 4), (-1, -1, 0, 2))) == [0, 1, 1, 2, 3]


def test_paths_hold_the_drafted_tokens_before_and_at_each_row():
    assert paths(DraftTree((7, 8))) == [(), (7,), (7, 8)]
    assert paths(DraftTree((7, 8, 9), (-1, -1, 1))) == [(), (7,), (8,), (8, 9)]
