"""Which tree brings most: against every tree there is, and against Sequoia's own recursion."""

from functools import cache
from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contract.types import node_depths
from services.drafter.methods.graph.tree_shape import TreeShape, best_shape, most_probable
from tests.tries import tries

RATES = st.lists(st.floats(0.01, 0.6), min_size=1, max_size=4).map(
    lambda rates: sorted(rates, reverse=True)
)


def every_tree(nodes, depth, width):
    """Parents of all trees of so many nodes, some more than once."""
    for parents in product(*(range(-1, node) for node in range(nodes))):
        fits = max(node_depths(parents), default=-1) < depth
        if fits and all(parents.count(parent) <= width for parent in parents):
            yield parents


def brings(parents, rates):
    """E[tokens] by following every path."""
    ranks = [parents[:node].count(parent) for node, parent in enumerate(parents)]
    total = 1.0
    for node in range(len(parents)):
        path = []
        while node >= 0:
            path.append(rates[ranks[node]])
            node = parents[node]
        total += prod(path)
    return total


def recursion(rates, nodes, depth):
    """Sequoia's F(n), depth bounded, for a tree of so many nodes below its root."""

    @cache
    def best(size, levels):
        return 1.0 + shared(size - 1, 0, levels)

    @cache
    def shared(size, rank, levels):
        if size == 0 or rank == len(rates) or levels == 0:
            return 0.0 if size == 0 else float("-inf")
        options = (
            rates[rank] * best(own, levels - 1) + shared(size - own, rank + 1, levels)
            for own in range(1, size + 1)
        )
        return max(options)

    return best(nodes + 1, depth)


@tries(40)
@given(RATES, st.integers(1, 6), st.integers(1, 4))
def test_no_tree_of_as_many_nodes_brings_more(rates, nodes, depth):
    shape = most_probable(rates, nodes, depth)
    trees = every_tree(len(shape), depth, len(rates))
    assert 1.0 + sum(shape.reach) == pytest.approx(brings(shape.parents, rates))
    assert 1.0 + sum(shape.reach) == pytest.approx(max(brings(tree, rates) for tree in trees))


@tries(40)
@given(RATES, st.integers(1, 20), st.integers(1, 6))
def test_it_is_the_optimum_of_sequoias_recursion(rates, nodes, depth):
    shape = most_probable(rates, nodes, depth)
    assert 1.0 + sum(shape.reach) == pytest.approx(recursion(rates, len(shape), depth))


@tries(100)
@given(RATES, st.integers(0, 30), st.integers(1, 6))
def test_every_first_part_is_a_tree_with_siblings_in_order(rates, nodes, depth):
    shape = most_probable(rates, nodes, depth)
    assert len(shape) <= nodes
    assert shape.depth <= depth
    for node, (parent, rank) in enumerate(zip(shape.parents, shape.ranks, strict=True)):
        assert -1 <= parent < node
        assert rank == shape.parents[:node].count(parent) < len(rates)
    assert list(shape.reach) == sorted(shape.reach, reverse=True)


@tries(40)
@given(RATES, st.floats(0.0, 0.2), st.floats(0.0, 1.0))
def test_size_and_depth_are_those_of_the_fastest_of_all_trees(rates, slope, draft):
    def pace(parents):
        levels = max((depth + 1 for depth in node_depths(parents)), default=0)
        return brings(parents, rates) / (1.0 + slope * len(parents) + levels * draft)

    best = best_shape(rates, nodes=5, depth=3, verify=lambda n: 1.0 + slope * n, draft=draft)
    trees = [tree for size in range(6) for tree in every_tree(size, 3, len(rates))]
    assert pace(best.parents) == pytest.approx(max(map(pace, trees)))


def test_a_draft_that_costs_more_than_it_brings_is_not_made():
    assert best_shape([0.3], nodes=8, depth=4, verify=lambda n: 1.0 + n, draft=0.0) == TreeShape()
    assert best_shape([0.5], nodes=8, depth=4, verify=lambda _: 1.0, draft=9.0) == TreeShape()
    assert best_shape([], nodes=8, depth=4, verify=lambda _: 1.0, draft=0.0) == TreeShape()


def test_free_verification_takes_all_nodes_and_a_cheap_draft_goes_deep():
    shape = best_shape([0.5, 0.2], nodes=9, depth=3, verify=lambda _: 1.0, draft=0.0)
    assert (len(shape), shape.depth) == (9, 3)
    chain = best_shape([0.9, 0.01], nodes=6, depth=6, verify=lambda n: 1 + 0.1 * n, draft=0.0)
    assert chain.parents == (-1, 0, 1, 2, 3, 4)


def test_a_rate_above_the_one_before_it_counts_as_that():
    assert most_probable([0.4, 0.1, 0.3], 9, 2) == most_probable([0.4, 0.1, 0.1], 9, 2)


def test_the_widths_are_the_nodes_with_children_of_each_level():
    shape = TreeShape((-1, -1, 0, 0, 1, 2), (0, 1, 0, 1, 0, 0), (0.5,) * 6)
    assert shape.widths == (1, 2, 1)
    assert TreeShape().widths == ()
