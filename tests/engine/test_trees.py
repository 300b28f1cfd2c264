"""Token trees: each node sees its own path, on every architecture; `port_suite` has the rest."""

from __future__ import annotations

import pytest
import torch

from services.engine.port import Segment
from tests.engine.conftest import CLOSE, engine_of, feed, random_text, stock_logits

PARENTS = [-1, -1, 0, 0, 1, 2, 5, 4, -1]
TOKENS = random_text(len(PARENTS), seed=7)


def path_to(node):
    path = []
    while node >= 0:
        path.append(node)
        node = PARENTS[node]
    return path[::-1]


def kept(path):
    return lambda cache: cache.keep_path(2, path)


@pytest.mark.parametrize(
    ("act", "why"),
    [
        *((kept(path), "is not a path") for path in ([2], [0, 4], [0, 2, 6], [9], [-1])),
        (lambda cache: cache.keep_path(1, [0]), "appended at 2"),
        (lambda cache: cache.rollback(6), "cannot cut a tree"),
        (lambda cache: feed(engine_of("llama"), cache, [3]), "unresolved"),
    ],
)
def test_what_an_open_tree_does_not_allow_is_refused_and_changes_nothing(llama, act, why):
    cache = llama.new_cache(64)
    feed(llama, cache, [3, 4])
    feed(llama, cache, TOKENS, parents=PARENTS)
    with pytest.raises(ValueError, match=why):
        act(cache)
    cache.rollback(3)
    assert cache.length == 3
    feed(llama, cache, [3])


# --- trees that grow -----------------------------------------------------------------

LEVELS = [[0, 1, 8], [2, 3, 4], [5, 7], [6]]
ORDER = [node for level in LEVELS for node in level]
STEPS = [[ORDER], LEVELS, [[node] for node in ORDER], [ORDER[:4], ORDER[4:]]]
PLACE = {-1: -1} | {node: place for place, node in enumerate(ORDER)}


def grow(cache, base, nodes):
    """Append some nodes of the tree, whose parents are there by now; one row of logits each."""
    parents = [PLACE[PARENTS[node]] for node in nodes]
    return Segment(cache, [TOKENS[node] for node in nodes], parents, base=base)


@pytest.mark.parametrize(
    "steps", [[ORDER], LEVELS, [[node] for node in ORDER], [ORDER[:4], ORDER[4:]]]
)
@pytest.mark.parametrize("context", [0, 1, 14])
def test_every_node_sees_its_ancestors_only_in_whatever_steps_its_tree_grows(
    arch, engine, context, steps
):
    text = random_text(context) if context else []
    cache = engine.new_cache(64)
    if text:
        feed(engine, cache, text)
    rows = [row for nodes in steps for [row] in [engine.forward([grow(cache, context, nodes)])]]
    for node, row in zip(ORDER, torch.cat(rows), strict=True):
        branch = [TOKENS[n] for n in path_to(node)]
        torch.testing.assert_close(row, stock_logits(arch, text + branch)[-1], **CLOSE)


def test_a_chain_in_the_cache_may_become_a_tree(llama):
    cache = llama.new_cache(64)
    feed(llama, cache, TOKENS[:6])
    rows = feed(llama, cache, [9, 11], parents=[1, -1], base=3)
    for row, text in zip(rows, ([*TOKENS[:5], 9], [*TOKENS[:3], 11]), strict=True):
        torch.testing.assert_close(row, stock_logits("llama", text)[-1], **CLOSE)
    cache.keep_path(3, [0, 1, 3])
    assert cache.length == 6


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"parents": [2]}, "before their children"),
        ({"parents": [-2]}, "before their children"),
        ({"parents": [0, 1]}, "2 parents for 1 tokens"),
        ({"parents": None}, "needs the parents"),
        ({"parents": [0], "base": 13}, "appended at 14"),
        ({"parents": [0], "base": 99}, "no tree at 99"),
        ({"parents": [0], "base": None}, "unresolved"),
    ],
)
def test_what_does_not_continue_the_tree_is_refused_and_changes_nothing(llama, change, match):
    cache = llama.new_cache(64)
    feed(llama, cache, random_text(14))
    feed(llama, cache, [5, 6], parents=[-1, -1])
    with pytest.raises(ValueError, match=match):
        feed(llama, cache, [3], **{"base": 14, **change})
    feed(llama, cache, [3], parents=[1], base=14)
    cache.keep_path(14, [1, 2])
    assert cache.length == 16
