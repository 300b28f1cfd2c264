import random

import pytest

from services.contract.types import DraftTree
from services.verifier.rules import Walk, walk_rows
from services.verifier.trees import depths


def walk(tree, choices):
    return walk_rows([tree], lambda places: [choices[row] for _, row in places])[0]


def walk_chain(tokens, choices):
    return walk(DraftTree(tuple(tokens)), choices)


def walk_tree(tokens, parents, choices):
    return walk(DraftTree(tuple(tokens), tuple(parents)), choices)


TREE, TWINS = ((5, 6, 7), (-1, -1, 0)), ((5, 5, 7), (-1, -1, 0))
WIDE = (5, 6, 7, 8, 9), (-1, -1, 0, 1, 1)
WALKS = {
    "an empty block emits the target's choice": ((), None, [7], Walk((), 7, True)),
    "a chain that agrees gives a bonus": ((1, 2), None, [1, 2, 3], Walk((0, 1), 3, True)),
    "a chain stops at its first token": ((1, 2), None, [9, 2, 3], Walk((), 9, False)),
    "a chain stops at its second token": ((1, 2), None, [1, 9, 3], Walk((0,), 9, False)),
    "a later agreement does not count": ((1, 2, 3), None, [5, 2, 3, 4], Walk((), 5, False)),
    "a tree descends to the child of the choice": (
        *WIDE,
        [6, 0, 9, 0, 0, 4],
        Walk((1, 4), 4, True),
    ),
    "a walk that leaves at an inner node rejects": (*TREE, [5, 1, 0, 0], Walk((0,), 1, False)),
    "a walk that ends at a short leaf accepts all": (*TREE, [6, 0, 3, 0], Walk((1,), 3, True)),
    "the first of equal children wins": (*TWINS, [5, 7, 0, 2], Walk((0, 2), 2, True)),
}


@pytest.mark.parametrize(("tokens", "parents", "choices", "walked"), WALKS.values(), ids=WALKS)
def test_a_walk_follows_the_targets_choices(tokens, parents, choices, walked):
    assert walk(DraftTree(tokens, parents), choices) == walked


def test_a_chain_given_as_a_tree_walks_alike():
    rng = random.Random(1)
    for _ in range(300):
        size = rng.randrange(6)
        tokens = [rng.randrange(3) for _ in range(size)]
        choices = [rng.randrange(3) for _ in range(size + 1)]
        assert walk_tree(tokens, range(-1, size - 1), choices) == walk_chain(tokens, choices)


def test_whatever_the_tree_the_text_is_a_prefix_of_the_targets_own():
    rng = random.Random(2)
    target = [rng.randrange(3) for _ in range(12)]
    for _ in range(500):
        size = rng.randrange(1, 10)
        parents = [rng.randrange(-1, node) for node in range(size)]
        tokens = [rng.randrange(3) for _ in range(size)]
        tree = DraftTree(tuple(tokens), tuple(parents))
        # Off the accepted path the choices are noise; on it they are the target's.
        choices = [target[depth] for depth in depths(tree)]
        walked = walk(tree, choices)
        text = [tokens[node] for node in walked.path] + [walked.final_token]
        assert text == target[: len(text)]
        assert walked.all_accepted == _is_leaf(parents, walked.path)


def random_tree(rng):
    size = rng.randrange(8)
    parents = tuple(rng.randrange(-1, node) for node in range(size))
    tokens = tuple(rng.randrange(3) for _ in range(size))
    return DraftTree(tokens, parents if rng.random() < 0.7 else None)


def test_trees_walk_together_as_each_alone():
    rng = random.Random(3)
    trees = [random_tree(rng) for _ in range(200)]
    choices = [[rng.randrange(3) for _ in range(len(tree) + 1)] for tree in trees]
    together = walk_rows(trees, lambda places: [choices[block][row] for block, row in places])
    assert together == [walk(*pair) for pair in zip(trees, choices, strict=True)]


def test_a_choice_is_asked_for_once_and_only_where_a_walk_comes():
    rng = random.Random(4)
    for _ in range(200):
        trees = [random_tree(rng) for _ in range(3)]
        asked = []

        def choose(places, asked=asked):
            asked += places
            return [rng.randrange(3) for _ in places]

        walks = walk_rows(trees, choose)
        reached = [
            (block, row)
            for block, walked in enumerate(walks)
            for row in (0, *(node + 1 for node in walked.path))
        ]
        assert sorted(asked) == sorted(reached)


def test_a_walk_may_start_below_the_root():
    tree = DraftTree((5, 6, 7, 8), (-1, 0, 0, 2))
    walked = walk_rows([tree], lambda places: [(0, 7, 0, 8, 9)[row] for _, row in places], [1])
    assert walked == [Walk((2, 3), 9, True)]


def _is_leaf(parents, path):
    return (path[-1] if path else -1) not in parents
