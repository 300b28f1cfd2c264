"""The draft graph by itself: pruning, merging, unfolding, and what outlives a growing text."""

from graphlib import TopologicalSorter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contract.types import node_depths
from services.drafter.comb import Level
from services.drafter.methods.graph.draft_graph import ROOT, DraftGraph, GraphRules
from tests.tries import tries

OPEN = {"sibling_share": 0.0, "leaf_weight": 0.0}
FALLING = (0.5, 0.25, 0.125)


def level(*tokens, weights=FALLING):
    return Level(tokens, weights=tuple(weights[: len(tokens)]))


def grown(*growth, text=(8, 9), stops=(), **rules):
    """A graph that nothing is pruned from, after these expansions."""
    made = DraftGraph(text, GraphRules(**(OPEN | rules)), stops)
    for node, below in growth:
        made.expand(node, below)
    return made


def paths(made, depth=99, most=99):
    """Every path of the unfolded tree, from the text down."""
    copied, parents = made.unfolded(depth, most)
    found = []
    for node, parent in zip(copied, parents, strict=True):
        above = found[parent] if parent >= 0 else ()
        found.append((*above, made[node].token))
    return found


# --- pruning, leaves, the cap ------------------------------------------------------------


def test_a_candidate_far_below_the_best_is_pruned():
    made = grown((ROOT, level(1, 2, 3, weights=(0.5, 0.1, 0.09))), sibling_share=0.2)
    assert [node.token for node in made.nodes] == [1, 2]


def test_an_unlikely_node_and_a_stop_token_are_leaves():
    below = level(1, 2, 3, weights=(0.5, 0.3, 0.09))
    made = grown((ROOT, below), leaf_weight=0.1, stops=(2,))
    assert [node.leaf for node in made.nodes] == [False, True, True]
    assert made.frontier(9, 9) == [0]


def test_the_frontier_is_the_trunk_and_then_the_most_probable_nodes_that_may_grow():
    made = grown((ROOT, level(1, 2, weights=(0.6, 0.3))), (0, level(3, 4, weights=(0.3, 0.2))))
    assert made.frontier(3, 9) == [2, 1, 3]
    assert made.frontier(3, 1) == [2]
    assert made.frontier(2, 9) == [1]
    assert made.frontier(1, 9) == []


def test_a_full_graph_takes_no_node_but_still_an_edge():
    made = grown((ROOT, level(1, 2)), (0, level(3, 4)), (1, level(3)), max_nodes=3, repeat=0)
    assert (len(made.nodes), made.merged) == (3, 1)
    assert {(1, 3), (2, 3)} <= set(paths(made))
    assert made.frontier(9, 9) == []


# --- merging -----------------------------------------------------------------------------


SHARED = ((ROOT, level(1, 2)), (0, level(5)), (2, level(6)), (1, level(5, 7)))
"""5 stands behind 1 and behind 2, and 6 behind the first of them."""


def test_a_repeated_token_is_an_edge_that_brings_what_follows_it():
    made = grown(*SHARED, repeat=0)
    assert (made.merged, len(made.nodes)) == (1, 5)
    assert (2, 5, 6) in paths(made)


@pytest.mark.parametrize(("repeat", "merged"), [(0, 2), (1, 1), (2, 0)])
def test_a_merge_needs_as_many_equal_tokens_as_the_rule_says(repeat, merged):
    made = grown((ROOT, level(1, 2, 6)), (0, level(3)), repeat=repeat, text=(7,))
    for path, token in (((1, 3), 5), ((2,), 4), ((2, 4), 5), ((6,), 9), ((6, 9), 3)):
        made.expand(made.walk(path)[-1], level(token))
    if repeat:
        made.expand(made.walk((6, 9, 3))[-1], level(5))
    assert made.merged == merged


def test_the_text_counts_as_the_tokens_in_front_of_the_first_nodes():
    made = grown((ROOT, level(2, 3)), (1, level(1)), (2, level(2)), text=(8, 1))
    assert made.merged == 1
    assert (3, 1, 2) in paths(made)


def test_nothing_is_merged_with_its_own_path_and_no_cycle_closes_over_other_edges():
    made = grown((ROOT, level(1, 2)), (0, level(1)), repeat=0)
    assert made.merged == 0, "1 after 1 would be its own ancestor"
    made.expand(2, level(3))
    made.expand(1, level(3))
    assert made.merged == 1, "3 after 2 is the 3 after 1 1"
    made.expand(3, level(7, 1, 2))
    below = [made[node] for node, _ in made[3].below]
    assert [(node.token, node.parent) for node in below] == [(7, 3), (1, 3), (2, 3)]
    assert made.merged == 1, "1 and 2 lead to 3 already"


def test_the_trunk_is_never_merged():
    made = grown((ROOT, level(1, 2)), (0, level(2)), (2, level(3)), (1, level(3)), repeat=0)
    assert [made[node].parent for node in made.walk((1, 2, 3))] == [ROOT, 0, 2]
    assert made.merged == 1


def test_at_the_same_depth_alone_where_the_rule_says_so():
    made = grown((ROOT, level(1, 2)), (0, level(2, 3)), repeat=0, same_depth=True)
    assert made.merged == 0
    made.expand(1, level(3))
    assert made.merged == 1


def test_several_edges_lead_to_a_node_and_several_from_one():
    ends = ((0, level(5, 6)), (1, level(5, 6)), (2, level(6, 5)))
    made = grown((ROOT, level(1, 2, 3)), *ends, repeat=0)
    assert (made.merged, len(made.nodes)) == (4, 5)
    assert [made[node].token for node, _ in made[2].below] == [6, 5]


# --- unfolding ---------------------------------------------------------------------------


def test_children_keep_their_draw_order_and_the_most_probable_paths_come_first():
    made = grown(
        (ROOT, level(1, 2, weights=(0.6, 0.3))),
        (0, level(3, 4, weights=(0.4, 0.4))),
        (1, level(6, weights=(0.9,))),
    )
    assert paths(made) == [(1,), (1, 3), (2,), (2, 6), (1, 4)]
    assert paths(made, most=3) == [(1,), (1, 3), (2,)]
    assert paths(made, depth=1) == [(1,), (2,)]


def test_the_trunk_is_expanded_and_kept_first_however_unlikely():
    made = grown((ROOT, level(1, 2, weights=(0.5, 0.5))), (0, level(3, weights=(0.1,))))
    assert made.frontier(9, 1) == [2]
    made.expand(2, level(4, weights=(0.1,)))
    assert paths(made, most=3) == [(1,), (1, 3), (1, 3, 4)]


# --- what outlives a growing text ----------------------------------------------------------


def test_a_walk_tells_how_much_of_it_was_drafted_as_it_was_taken():
    made = grown(*SHARED, repeat=0)
    assert made.walk((1, 5, 6)) == [0, 2, 3]
    assert made.real([0, 2, 3]) == 3
    assert made.walk((2, 5, 6, 7)) == [1, 2, 3]
    assert made.real([1, 2, 3]) == 1
    assert made.walk((4,)) == []


def test_a_branch_is_the_graph_that_was_there_below_its_end():
    growth = ((0, level(3, 4)), (1, level(3)), (2, level(5, 6)), (3, level(5)))
    made = grown((ROOT, level(1, 2)), *growth)
    branch, index = made.branch(0, (8, 9, 1))
    assert paths(branch) == [path[1:] for path in paths(made) if path[0] == 1 and len(path) > 1]
    assert index == {0: ROOT, 2: 0, 3: 1, 5: 2, 6: 3, 7: 4}
    assert [node.depth for node in branch.nodes] == [0, 0, 1, 1, 1]
    assert branch.frontier(9, 9) == [2, 3, 4]


# --- any growth --------------------------------------------------------------------------

GROWTH = st.lists(
    st.tuples(st.integers(0, 30), st.lists(st.integers(0, 4), unique=True, max_size=3)), max_size=25
)
RULES = st.builds(
    GraphRules,
    max_nodes=st.integers(1, 40),
    sibling_share=st.just(0.0),
    leaf_weight=st.sampled_from([0.0, 0.2]),
    repeat=st.sampled_from([None, 0, 1, 2]),
    same_depth=st.booleans(),
)


@tries(200)
@given(RULES, GROWTH, st.integers(1, 8), st.integers(1, 60))
def test_any_graph_is_acyclic_bounded_and_unfolds_to_a_tree_of_its_own_paths(
    rules, growth, depth, most
):
    made = DraftGraph((8, 9), rules)
    made.expand(ROOT, level(0, 1, 2))
    for which, tokens in growth:
        frontier = made.frontier(99, 99)
        if frontier:
            made.expand(frontier[which % len(frontier)], level(*tokens))
    assert len(made.nodes) <= rules.max_nodes
    below = {number: [one for one, _ in node.below] for number, node in enumerate(made.nodes)}
    assert len([*TopologicalSorter(below).static_order()]) == len(made.nodes), "there is a cycle"
    for number, node in enumerate(made.nodes):
        assert node.parent < number
        for below, _ in node.below:
            merged = made[below].parent != number
            ending = (*made.tokens(made.path(number)), made[below].token)
            if merged and rules.repeat is not None:
                shared = rules.repeat + 1
                whole, own = (8, 9, *ending), (8, 9, *made.tokens(made.path(below)))
                assert whole[-shared:] == own[-shared:]
                assert not rules.same_depth or made[below].depth == node.depth + 1
            assert not merged or rules.repeat is not None
    copied, parents = made.unfolded(depth, most)
    assert len(copied) <= most
    assert all(-1 <= parent < number for number, parent in enumerate(parents))
    assert max(node_depths(parents), default=0) < depth
    for path in paths(made, depth, most):
        assert made.tokens(made.walk(path)) == path
    for number in {-1, *parents}:
        own = [copied[child] for child, parent in enumerate(parents) if parent == number]
        above = ROOT if number < 0 else copied[number]
        assert own == [below for below, _ in made[above].below][: len(own)]
