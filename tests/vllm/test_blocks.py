"""Blocks are shared, copied and given back; that no row shows it is in `port_suite`."""

import pytest

from services.contract.errors import Overloaded
from services.engine.port import Segment
from services.engine.vllm.blocks import Blocks
from tests.vllm.blocks_of_tokens import SIZE, BlocksOfTokens

TEXT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


@pytest.fixture
def engine():
    return BlocksOfTokens(240, 60)


def fed(engine, text, reserve=40):
    cache = engine.new_cache(reserve)
    engine.forward([Segment(cache, text)])
    return cache


def test_a_fork_shares_all_blocks_and_copies_the_last_when_it_is_written_to(engine):
    first = fed(engine, TEXT)
    branch = first.fork(40)
    assert branch.table == first.table
    engine.forward([Segment(branch, [11])])
    assert branch.table[:-1] == first.table[:-1]
    assert branch.table[-1] != first.table[-1]


def test_whoever_writes_first_copies_and_the_other_keeps_the_block(engine):
    first = fed(engine, TEXT)
    branch = first.fork(40)
    before = list(first.table)
    engine.forward([Segment(first, [11])])
    assert branch.table == before


def test_a_block_at_whose_end_a_text_goes_on_is_not_copied(engine):
    first = fed(engine, TEXT[: 2 * SIZE])
    branch = first.fork(40)
    engine.forward([Segment(branch, [11])])
    assert branch.table[:2] == first.table


def test_all_blocks_come_back_when_texts_trees_forks_and_parked_ones_have_ended(engine):
    free = engine.budget.free
    prefixes = engine.prefix_cache(100)
    shared = prefixes.open("a", [*TEXT, *TEXT], 40)
    engine.forward([Segment(shared.cache, [*TEXT, *TEXT])])
    tree = fed(engine, TEXT)
    engine.forward([Segment(tree, [1, 2, 3, 4, 5], (-1, -1, 0, 0, 1))])
    branch = tree.fork(40)
    tree.keep_path(len(TEXT), [1, 4])
    shared.end()
    assert engine.budget.free < free
    branch.free()
    tree.free()
    prefixes.evict_all()
    assert (engine.budget.free, engine.budget.tables) == (free, 0)


def test_a_pass_that_fails_gives_the_blocks_of_its_branches_back(engine, monkeypatch):
    cache = fed(engine, TEXT)
    free = engine.budget.free + len(cache.table)
    with monkeypatch.context() as broken:
        broken.setattr(engine, "_compute", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.forward([Segment(cache, [1, 2, 3], (-1, -1, -1))])
    cache.free()
    assert engine.budget.free == free


def test_a_kept_path_that_the_blocks_do_not_hold_is_fed_again(engine):
    cache = fed(engine, TEXT)
    engine.forward([Segment(cache, [1, 2, 3], (-1, -1, 1))])
    assert cache.filled == len(TEXT) + 1
    cache.keep_path(len(TEXT), [1, 2])
    assert cache.filled == len(TEXT)
    [rows] = engine.forward([Segment(cache, [7])])
    alone = fed(engine, [*TEXT, 2, 3])
    [expected] = engine.forward([Segment(alone, [7])])
    assert rows.equal(expected)


def with_a_branch(engine):
    """A tree whose blocks hold nodes 1 and 2, and no longer node 0, which was there first."""
    cache = fed(engine, TEXT)
    engine.forward([Segment(cache, [1, 2], (-1, -1))])
    engine.forward([Segment(cache, [3], (1,), base=len(TEXT))])
    assert (cache.filled, cache.branch) == (10, [11, 12])
    return cache


def test_a_branch_that_grows_is_not_fed_again(engine):
    cache = with_a_branch(engine)
    before = cache.table[:3]
    engine.forward([Segment(cache, [5], (2,), base=len(TEXT))])
    assert (cache.filled, cache.branch) == (10, [11, 12, 13])
    cache.keep_path(len(TEXT), [1, 2, 3])
    assert (cache.filled, cache.branch, cache.table[:3]) == (13, [], before)


def test_what_a_failed_pass_wrote_over_is_fed_again(engine, monkeypatch):
    cache = with_a_branch(engine)
    compute = engine._compute
    with monkeypatch.context() as broken:
        broken.setattr(engine, "_compute", lambda step: compute(step).logits / "nothing")
        with pytest.raises(TypeError):
            engine.forward([Segment(cache, [4], (0,), base=len(TEXT))])
    cache.keep_path(len(TEXT), [1, 2])
    [rows] = engine.forward([Segment(cache, [7])])
    [expected] = engine.forward([Segment(fed(engine, [*TEXT, 2, 3]), [7])])
    assert rows.equal(expected)


def test_more_texts_at_a_time_than_blocks_are_set_aside_for_are_refused(engine):
    most = engine.budget.most_tables
    caches = [engine.new_cache(1) for _ in range(most)]
    used = engine.kv_tokens_used
    with pytest.raises(Overloaded, match=f"{most} texts are open"):
        engine.new_cache(1)
    assert engine.kv_tokens_used == used
    caches.pop().free()
    engine.new_cache(1)


def test_texts_that_ended_make_way_for_new_ones(engine):
    prefixes = engine.prefix_cache(240)
    for start in range(engine.budget.most_tables + 2):
        text = [(start + i) % 12 for i in range(20)]
        shared = prefixes.open("a", text, 21)
        engine.forward([Segment(shared.cache, text)])
        shared.end()
    assert engine.budget.tables <= engine.budget.most_tables


@pytest.mark.parametrize("tokens", [1, 100, 8192, 131072])
@pytest.mark.parametrize("size", [4, 32])
def test_the_blocks_for_a_number_of_tokens_are_as_many_as_it_takes(tokens, size):
    count = Blocks.holding(tokens, size)
    assert Blocks(count, size).capacity >= tokens
    assert count * size < 2 * tokens + 4 * size
