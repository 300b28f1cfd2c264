"""Token trees: each node sees its own path; a path is kept, the rest forgotten."""

from __future__ import annotations

import pytest
import torch

from services.common.engine import Segment
from tests.engine.conftest import CLOSE, feed, random_text, stock_logits

PARENTS = [-1, -1, 0, 0, 1, 2, 5, 4, -1]
TOKENS = random_text(len(PARENTS), seed=7)


def path_to(node):
    path = []
    while node >= 0:
        path.append(node)
        node = PARENTS[node]
    return path[::-1]


@pytest.mark.parametrize("context", [0, 1, 14])
def test_every_node_sees_its_ancestors_only(arch, engine, context):
    text = random_text(context) if context else []
    cache = engine.new_cache(64)
    if text:
        feed(engine, cache, text)
    rows = feed(engine, cache, TOKENS, parents=PARENTS)
    for node in range(len(TOKENS)):
        branch = [TOKENS[n] for n in path_to(node)]
        expected = stock_logits(arch, text + branch)[-1]
        torch.testing.assert_close(rows[node], expected, **CLOSE)
    cache.free()


@pytest.mark.parametrize("path", [[], [1], [0, 2, 5, 6], [0, 3], [1, 4, 7], [8]])
def test_a_kept_path_is_as_good_as_a_chain(arch, engine, path):
    text, more = random_text(14), random_text(5, seed=9)
    cache = engine.new_cache(64)
    feed(engine, cache, text)
    feed(engine, cache, TOKENS, parents=PARENTS)
    cache.keep_path(14, path)
    assert cache.length == 14 + len(path)
    rows = feed(engine, cache, more)
    whole = text + [TOKENS[n] for n in path] + more
    torch.testing.assert_close(rows, stock_logits(arch, whole)[-5:], **CLOSE)
    cache.free()


def test_a_tree_and_a_chain_share_a_step(arch, engine):
    text, other = random_text(14), random_text(20, seed=2)
    a, b = engine.new_cache(64), engine.new_cache(64)
    feed(engine, a, text)
    tree, chain = engine.forward([Segment(a, TOKENS, PARENTS), Segment(b, other)])
    expected = stock_logits(arch, text + [TOKENS[n] for n in path_to(6)])[-1]
    torch.testing.assert_close(tree[6], expected, **CLOSE)
    torch.testing.assert_close(chain, stock_logits(arch, other), **CLOSE)
    a.free()
    b.free()


def test_parents_of_a_chain_are_a_chain(llama):
    cache = llama.new_cache(64)
    rows = feed(llama, cache, TOKENS, parents=list(range(-1, len(TOKENS) - 1)))
    torch.testing.assert_close(rows, stock_logits("llama", TOKENS), **CLOSE)
    cache.keep_path(0, [0, 1])
    assert cache.length == 2
    cache.free()


def test_an_unresolved_tree_takes_no_more_tokens(llama):
    cache = llama.new_cache(64)
    feed(llama, cache, TOKENS, parents=PARENTS)
    with pytest.raises(ValueError, match="unresolved"):
        feed(llama, cache, [3])
    cache.rollback(0)
    feed(llama, cache, [3])
    cache.free()


def test_a_tree_cannot_be_cut_across(llama):
    cache = llama.new_cache(64)
    feed(llama, cache, TOKENS, parents=PARENTS)
    with pytest.raises(ValueError, match="cannot cut a tree"):
        cache.rollback(4)
    cache.rollback(1)
    assert cache.length == 1
    cache.free()


@pytest.mark.parametrize("path", [[2], [0, 4], [0, 2, 6], [9], [-1]])
def test_what_is_no_path_is_refused(llama, path):
    cache = llama.new_cache(64)
    feed(llama, cache, TOKENS, parents=PARENTS)
    with pytest.raises(ValueError, match="is not a path"):
        cache.keep_path(0, path)
    cache.free()


def test_a_path_is_kept_at_the_place_of_the_tree_only(llama):
    cache = llama.new_cache(64)
    feed(llama, cache, [3, 4])
    feed(llama, cache, TOKENS, parents=PARENTS)
    with pytest.raises(ValueError, match="appended at 2"):
        cache.keep_path(1, [0])
    cache.free()
