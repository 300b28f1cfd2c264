"""Token trees: each node sees its own path; a path is kept, the rest forgotten."""

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


def test_a_tree_and_a_chain_share_a_step(arch, engine):
    text, other = random_text(14), random_text(20, seed=2)
    a, b = engine.new_cache(64), engine.new_cache(64)
    feed(engine, a, text)
    tree, chain = engine.forward([Segment(a, TOKENS, PARENTS), Segment(b, other)])
    expected = stock_logits(arch, text + [TOKENS[n] for n in path_to(6)])[-1]
    torch.testing.assert_close(tree[6], expected, **CLOSE)
    torch.testing.assert_close(chain, stock_logits(arch, other), **CLOSE)


# --- trees that grow -----------------------------------------------------------------

LEVELS = [[0, 1, 8], [2, 3, 4], [5, 7], [6]]
ORDER = [node for level in LEVELS for node in level]
STEPS = [[ORDER], LEVELS]
PLACE = {-1: -1} | {node: place for place, node in enumerate(ORDER)}


def grow(cache, base, nodes):
    """Append some nodes of the tree, whose parents are there by now; one row of logits each."""
    parents = [PLACE[PARENTS[node]] for node in nodes]
    return Segment(cache, [TOKENS[node] for node in nodes], parents, base=base)


@pytest.mark.parametrize("steps", [*STEPS, [[node] for node in ORDER], [ORDER[:4], ORDER[4:]]])
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


def test_trees_of_several_sessions_grow_in_one_step_beside_a_chain(arch, engine):
    texts = [random_text(3), random_text(14), random_text(20)]
    caches = [engine.new_cache(64) for _ in texts]
    engine.forward([Segment(*pair) for pair in zip(caches, texts, strict=True)])
    engine.forward([grow(caches[0], 3, LEVELS[0]), grow(caches[1], 14, ORDER[:5])])
    early, late, chain = engine.forward(
        [
            grow(caches[0], 3, LEVELS[1]),
            grow(caches[1], 14, ORDER[5:]),
            Segment(caches[2], TOKENS[:1]),
        ]
    )
    for text, nodes, rows in ((texts[0], LEVELS[1], early), (texts[1], ORDER[5:], late)):
        for node, row in zip(nodes, rows, strict=True):
            branch = [TOKENS[n] for n in path_to(node)]
            torch.testing.assert_close(row, stock_logits(arch, text + branch)[-1], **CLOSE)
    torch.testing.assert_close(chain, stock_logits(arch, texts[2] + TOKENS[:1])[-1:], **CLOSE)


@pytest.mark.parametrize("steps", STEPS, ids=["at once", "grown"])
@pytest.mark.parametrize("path", [[], [1], [0, 2, 5, 6], [0, 3], [1, 4, 7], [8]])
def test_a_kept_path_is_as_good_as_a_chain(arch, engine, path, steps):
    text, more = random_text(14), random_text(5, seed=9)
    cache = engine.new_cache(64)
    feed(engine, cache, text)
    for nodes in steps:
        engine.forward([grow(cache, 14, nodes)])
    cache.keep_path(14, [PLACE[node] for node in path])
    assert cache.length == 14 + len(path)
    rows = feed(engine, cache, more)
    whole = text + [TOKENS[n] for n in path] + more
    torch.testing.assert_close(rows, stock_logits(arch, whole)[-5:], **CLOSE)


@pytest.mark.parametrize(
    ("path", "below"),
    [([], ORDER), ([0], [2, 3, 5, 6]), ([0, 2], [5, 6]), ([1], [4, 7]), ([8], [])],
)
def test_the_branch_below_a_kept_path_goes_on_growing(arch, engine, path, below):
    text = random_text(14)
    cache = engine.new_cache(64)
    feed(engine, cache, text)
    for nodes in LEVELS:
        engine.forward([grow(cache, 14, nodes)])
    cache.keep_branch(14, [PLACE[node] for node in path])
    base = 14 + len(path)
    assert cache.length == base + len(below)
    rows = feed(engine, cache, [7] * (len(below) + 1), parents=range(-1, len(below)), base=base)
    for node, row in zip([*path[-1:], *below] if path else [-1, *below], rows, strict=True):
        branch = [TOKENS[n] for n in path_to(node)]
        torch.testing.assert_close(row, stock_logits(arch, [*text, *branch, 7])[-1], **CLOSE)


def test_a_fork_of_a_growing_tree_grows_by_itself(arch, engine):
    text = random_text(14)
    cache = engine.new_cache(64)
    feed(engine, cache, text)
    engine.forward([grow(cache, 14, LEVELS[0])])
    branch = cache.fork(64)
    engine.forward([grow(cache, 14, LEVELS[1])])
    [rows] = engine.forward([grow(branch, 14, [2])])
    expected = stock_logits(arch, text + [TOKENS[n] for n in path_to(2)])[-1]
    torch.testing.assert_close(rows[0], expected, **CLOSE)
    assert (cache.length, branch.length) == (20, 18)


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
