"""K/V in pages: many sessions at once, wherever their pages lie, and nothing of another's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.engine.native import pages as pages_module
from services.engine.native import paging
from services.engine.native.attending import Scoring, additive, attend, fused
from services.engine.native.kv import PagedBudget, PagedCache
from services.engine.native.pages import PAGE, Arena, Memory
from services.engine.port import Segment
from tests.engine import conftest as kit
from tests.engine.conftest import CLOSE, feed, random_text, stock_logits
from tests.tries import tries


def close_to_stock(rows, arch, text):
    torch.testing.assert_close(rows, stock_logits(arch, text)[-len(rows) :], **CLOSE)


LENGTHS = st.lists(
    st.tuples(st.integers(0, 3 * PAGE + 5), st.integers(1, 20)), min_size=1, max_size=7
)


@pytest.mark.parametrize("arch", ["llama", "mistral", "gemma3_text", "gemma2"])
@tries(10)
@given(lengths=LENGTHS)
def test_sessions_of_any_lengths_share_steps_as_if_each_were_alone(arch, lengths):
    """Texts within a page and beyond several, one row to many more than are padded."""
    engine = kit.engine_of(arch)
    texts = [random_text(past + rows, seed) for seed, (past, rows) in enumerate(lengths)]
    caches = [engine.new_cache(len(text)) for text in texts]
    begun = [
        Segment(cache, text[:past], logits_from=past)
        for cache, text, (past, _) in zip(caches, texts, lengths, strict=True)
        if past
    ]
    engine.forward(begun)
    given = [
        Segment(cache, text[past:])
        for cache, text, (past, _) in zip(caches, texts, lengths, strict=True)
    ]
    for rows, text in zip(engine.forward(given), texts, strict=True):
        close_to_stock(rows, arch, text)
    for cache in caches:
        cache.free()


@pytest.mark.parametrize("arch", ["llama", "mistral", "gemma2"])
def test_a_long_run_of_rows_that_is_cut_reads_all_that_is_before_it(arch, monkeypatch):
    monkeypatch.setattr(paging, "_LONG", 8)
    monkeypatch.setattr(paging, "_SCORES_BYTES", 1)
    engine = kit.engine_of(arch)
    text = random_text(200)
    cache, other = engine.new_cache(220), engine.new_cache(220)
    feed(engine, cache, text[:70])
    rows, beside = engine.forward([Segment(cache, text[70:]), Segment(other, text[:90])])
    close_to_stock(rows, arch, text)
    close_to_stock(beside, arch, text[:90])
    cache.free()
    other.free()


def test_trees_longer_than_a_page_stand_beside_chains(llama):
    text = random_text(PAGE - 3)
    tree, chain = llama.new_cache(200), llama.new_cache(200)
    feed(llama, tree, text)
    feed(llama, chain, random_text(2 * PAGE, seed=1))
    left, right = random_text(40, seed=2), random_text(40, seed=3)
    parents = [-1, *range(39), -1, *range(40, 79)]
    both, beside = llama.forward(
        [Segment(tree, left + right, parents), Segment(chain, random_text(5, seed=4))]
    )
    close_to_stock(both[:40], "llama", text + left)
    close_to_stock(both[40:], "llama", text + right)
    close_to_stock(beside, "llama", random_text(2 * PAGE, seed=1) + random_text(5, seed=4))
    tree.keep_path(len(text), range(40, 80))
    close_to_stock(feed(llama, tree, [7, 8]), "llama", [*text, *right, 7, 8])


@pytest.mark.parametrize("parents", [(-1, 0, 1), (-1, -1, 0)], ids=["chain", "tree"])
def test_a_small_draft_among_single_rows_is_read_like_them(llama, monkeypatch, parents):
    sizes = []
    grouped = paging.Group
    monkeypatch.setattr(
        paging, "Group", lambda runs, *more: sizes.append(len(runs)) or grouped(runs, *more)
    )
    texts = [random_text(PAGE + 9 * place, seed=place) for place in range(4)]
    caches = [llama.new_cache(2 * PAGE) for _ in texts]
    for cache, text in zip(caches, texts, strict=True):
        feed(llama, cache, text)
    alone = llama.new_cache(2 * PAGE)
    feed(llama, alone, texts[0])
    (expected,) = llama.forward([Segment(alone, [5, 6, 7], parents)])
    sizes.clear()
    found, *_ = llama.forward(
        [Segment(caches[0], [5, 6, 7], parents), *(Segment(cache, [5]) for cache in caches[1:])]
    )
    assert sizes == [6]
    torch.testing.assert_close(found, expected, **CLOSE)


def test_pages_that_lie_scattered_read_as_one_text(llama):
    """Every second page is another session's, and the table does not ascend."""
    first, second = llama.new_cache(400), llama.new_cache(400)
    text, other = random_text(330), random_text(330, seed=1)
    scattered = [[4, 1, 7, 0, 9, 12], [2, 11, 3, 8, 5, 10]]
    for cache, table in zip((first, second), scattered, strict=True):
        probe = llama.new_cache(1)
        feed(llama, probe, [1])
        extent = probe._memory.extent
        probe.free()
        cache._memory.extent, cache._memory.pages = extent, table
        # Taken without `take`, which would have set them to zero.
        with torch.inference_mode():
            for tensor in (extent.keys, extent.values):
                tensor[:, :, table] = 0
        for page in table:
            extent._state[page] = 1
    for start in range(0, 330, 110):
        part = slice(start, start + 110)
        mine, theirs = llama.forward([Segment(first, text[part]), Segment(second, other[part])])
    close_to_stock(mine, "llama", text)
    close_to_stock(theirs, "llama", other)
    close_to_stock(feed(llama, first, [5]), "llama", [*text, 5])


@pytest.fixture
def fresh():
    return kit.engine_with(kit.model_of("llama"))


def test_a_page_shows_nothing_of_who_had_it_before(fresh):
    """Not even numbers that are none: without weight they would still make all of it none."""
    gone = fresh.new_cache(PAGE)
    feed(fresh, gone, random_text(PAGE))
    extent, table = gone._memory.extent, list(gone._memory.pages)
    with torch.inference_mode():
        for stored in (extent.keys, extent.values):
            stored[:, :, table] = torch.nan
    gone.free()
    text = random_text(9)
    cache, beside = fresh.new_cache(16), fresh.new_cache(16)
    rows, _ = fresh.forward([Segment(cache, text), Segment(beside, text[:4])])
    assert set(cache._memory.pages + beside._memory.pages) & set(table)
    close_to_stock(rows, "llama", text)
    close_to_stock(feed(fresh, cache, [3]), "llama", [*text, 3])


def test_a_copy_takes_nothing_along_from_behind_its_end(fresh):
    cache = fresh.new_cache(PAGE)
    text = random_text(30)
    feed(fresh, cache, text)
    with torch.inference_mode():
        cache._memory.extent.values[:, :, cache._memory.pages[0], 20:] = torch.nan
    copy = fresh.new_cache(PAGE)
    copy.copy_prefix(cache, 20)
    rows, _ = fresh.forward([Segment(copy, [5, 6]), Segment(fresh.new_cache(4), [1])])
    close_to_stock(rows, "llama", [*text[:20], 5, 6])


def test_a_session_moves_on_where_its_extent_is_full_and_empty_extents_go(fresh, monkeypatch):
    monkeypatch.setattr(pages_module, "_EXTENT_BYTES", 1)
    texts = [random_text(300, seed) for seed in range(3)]
    caches = [fresh.new_cache(400) for _ in texts]
    for start in range(0, 300, 60):
        rows = fresh.forward(
            [Segment(c, text[start : start + 60]) for c, text in zip(caches, texts, strict=True)]
        )
    assert len(fresh.budget.arena.extents) > 1
    for one, text in zip(rows, texts, strict=True):
        close_to_stock(one, "llama", text)
    for cache in caches:
        cache.free()
    [left] = fresh.budget.arena.extents
    assert left.free == left.count


def test_where_memory_is_short_an_extent_is_no_larger_than_it_must_be(fresh, monkeypatch):
    sizes, make = [], pages_module.Extent

    def scarce(layers, count, key, value):
        sizes.append(count)
        if count > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return make(layers, count, key, value)

    monkeypatch.setattr(pages_module, "Extent", scarce)
    fresh.budget.arena.extents.clear()
    cache, text = fresh.new_cache(3 * PAGE), random_text(2 * PAGE + 1)
    close_to_stock(feed(fresh, cache, text), "llama", text)
    assert sizes == [4096 // PAGE, 3]
    other = fresh.new_cache(5 * PAGE)
    with pytest.raises(torch.OutOfMemoryError):
        feed(fresh, other, random_text(4 * PAGE))
    assert (other.length, other._memory.pages) == (0, [])
    close_to_stock(feed(fresh, cache, [5]), "llama", [*text, 5])


def memory_of(pages=8):
    budget = PagedBudget(pages * PAGE)
    return budget, torch.zeros(1, 2, 1, 4)


@tries(60)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5 * PAGE)), max_size=30))
def test_pages_are_held_by_one_and_none_is_lost(steps):
    budget, like = memory_of()
    arena = Arena(budget)
    memories = [Memory(arena) for _ in range(5)]
    for place, tokens in steps:
        if memories[place].room >= tokens:
            memories[place].free()
        else:
            memories[place].reach(tokens, tokens + PAGE, like, like)
        held = [(id(m.extent), page) for m in memories for page in m.pages]
        assert len(held) == len(set(held))
        for extent in arena.extents:
            mine = sum(owner == id(extent) for owner, _ in held)
            assert extent.free + mine == extent.count == len(extent._state)
            assert extent._state.count(1) == mine
    for memory in memories:
        memory.free()
        memory.free()
    assert len(arena.extents) <= 1
    assert not any(any(extent._state) for extent in arena.extents)


def test_a_cache_that_nobody_holds_any_more_gives_its_pages_back():
    budget, like = memory_of()
    cache = PagedCache(budget, 100)
    cache.reach(100, like, like)
    [extent] = budget.arena.extents
    assert extent.count - extent.free == 2
    del cache
    assert extent.free == extent.count


def test_a_lone_sessions_pages_lie_in_a_row_beside_one_that_grows():
    budget, like = memory_of(64)
    arena = Arena(budget)
    one, other = Memory(arena), Memory(arena)
    for tokens in range(PAGE, 6 * PAGE, PAGE):
        one.reach(tokens, 6 * PAGE, like, like)
        other.reach(tokens, 6 * PAGE, like, like)
    for memory in (one, other):
        assert memory.pages == list(range(memory.pages[0], memory.pages[0] + 5))
    place = list(one.pages)
    one.free()
    one.reach(5 * PAGE, 6 * PAGE, like, like)
    assert one.pages == place, "memory that was used before is used again"


def test_pages_kept_for_growth_are_taken_before_anybody_is_sent_away():
    budget, like = memory_of(8)
    arena = Arena(budget)
    one, other = Memory(arena), Memory(arena)
    one.reach(PAGE, 8 * PAGE, like, like)
    other.reach(4 * PAGE, 4 * PAGE, like, like)
    one.reach(4 * PAGE, 8 * PAGE, like, like)
    assert len(arena.extents) == 1
    assert sorted(one.pages + other.pages) == list(range(8))


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("masked", [False, True])
def test_products_of_matrices_and_the_fused_kernel_say_the_same(masked, softcap):
    """On the CPU the one is used, elsewhere the other; a soft cap has no fused kernel."""
    generator = torch.Generator().manual_seed(3)
    query, keys, values = (
        torch.randn(6, rows, 16, generator=generator) for rows in (9, PAGE, PAGE)
    )
    visible = torch.rand(6, 9, PAGE, generator=generator) < 0.5
    visible[:, :, 0] = True
    mask = additive(visible, query) if masked else None
    scoring = Scoring(0.3, softcap=softcap)
    ours = attend(query, keys, values, mask, scoring)
    scores = query @ keys.transpose(1, 2) * 0.3
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    else:
        torch.testing.assert_close(ours, fused(query, keys, values, mask, scoring), **CLOSE)
    weights = torch.softmax(scores if mask is None else scores + mask, -1)
    torch.testing.assert_close(ours, weights @ values, **CLOSE)
