"""Caches: budget, pages, and what is left where memory ends; `port_suite` has their moves."""

from __future__ import annotations

import pytest
import torch

from services.contract.errors import Overloaded
from services.engine.native import pages
from services.engine.native.pages import PAGE
from tests.engine import conftest as kit
from tests.engine.conftest import CLOSE, feed, random_text, stock_logits
from tests.engine.port_suite import MemoryEnds


def test_growth_copies_nothing_and_takes_a_page_at_a_time(llama):
    cache = llama.new_cache(200)
    tables = []
    for token in random_text(200):
        feed(llama, cache, [token])
        tables.append(list(cache._memory.pages))
    assert [len(table) for table in tables] == [1 + place // PAGE for place in range(200)]
    assert all(table == tables[-1][: len(table)] for table in tables)
    assert cache.length == 200


def test_a_rollback_copies_nothing(llama):
    cache = llama.new_cache(32)
    feed(llama, cache, random_text(20))
    before = list(cache._memory.pages)
    cache.rollback(3)
    feed(llama, cache, random_text(4))
    assert cache._memory.pages == before


@pytest.fixture
def small():
    with kit.emptied(kit.engine_with(kit.model_of("llama"), 100)) as engine:
        yield engine


def test_a_full_budget_refuses_and_free_gives_room_back(small):
    first = small.new_cache(60)
    with pytest.raises(Overloaded, match="41 tokens asked for, 40 of 100 free"):
        small.new_cache(41)
    with pytest.raises(Overloaded):
        first.fork(60)
    assert small.kv_tokens_used == 60
    first.free()
    first.free()
    assert small.kv_tokens_used == 0
    small.new_cache(100).free()


def test_free_gives_the_memory_back(small):
    cache = small.new_cache(50)
    feed(small, cache, random_text(20))
    [extent] = small.budget.arena.extents
    assert extent.free == extent.count - 1
    cache.free()
    assert extent.free == extent.count
    with pytest.raises(ValueError, match="freed"):
        feed(small, cache, [1])


def test_a_cache_reserves_at_least_one_token(small):
    with pytest.raises(ValueError, match="at least 1"):
        small.new_cache(0)


def failures(act):
    """Do it with the first call of torch failing, with the second, and so on until none does."""
    for at in range(10_000):
        try:
            with MemoryEnds(at):
                act()
        except torch.OutOfMemoryError:
            yield at
        else:
            assert at
            return


def test_a_step_without_memory_for_its_logits_has_fed_nothing(small, monkeypatch):
    """Else its tokens, fed again, would stand in the text twice."""
    cache, run = small.new_cache(50), small._run
    feed(small, cache, [4, 5])
    monkeypatch.setattr(small, "_run", lambda layout: run(layout).bfloat16())
    for _ in failures(lambda: feed(small, cache, [6])):
        assert cache.length == 2
    monkeypatch.undo()
    rows = feed(small, cache, [7])
    torch.testing.assert_close(rows, stock_logits("llama", [4, 5, 6, 7])[-1:], **CLOSE)


def test_a_fork_without_memory_takes_nothing_of_the_budget(small):
    trunk, branches = small.new_cache(PAGE), []
    feed(small, trunk, [4, 5])
    for _ in failures(lambda: branches.append(trunk.fork(20))):
        assert small.kv_tokens_used == PAGE


def test_a_path_that_could_not_be_kept_for_lack_of_memory_can_be_kept_later(small):
    cache, tries = small.new_cache(50), []
    feed(small, cache, [4, 5])
    feed(small, cache, [6, 7, 8, 9], parents=(-1, -1, 1, 2))
    with pytest.raises(RuntimeError, match="in part"):
        tries.extend(cache.length for _ in failures(lambda: cache.keep_path(2, [1, 2])))
    assert len(tries) > 2
    assert set(tries) == {6}
    cache.keep_path(2, [1, 2])
    rows = feed(small, cache, [3])
    torch.testing.assert_close(rows, stock_logits("llama", [4, 5, 7, 8, 3])[-1:], **CLOSE)


def test_a_text_that_finds_no_memory_to_move_to_stays_where_it_is(monkeypatch):
    monkeypatch.setattr(pages, "_EXTENT_BYTES", 1)
    engine = kit.engine_with(kit.model_of("llama"), 900)
    text = random_text(PAGE + 1)
    # Its extent is full with the other one's page.
    cache, other = caches = engine.new_cache(2 * PAGE), engine.new_cache(PAGE)
    for one in caches:
        feed(engine, one, text[:PAGE])
    home = cache._memory.extent
    assert home is other._memory.extent
    assert home.free == 0
    grown = []
    for _ in failures(lambda: grown.append(feed(engine, cache, text[PAGE:]))):
        assert cache.length == PAGE
    torch.testing.assert_close(grown[0], stock_logits("llama", text)[-1:], **CLOSE)
    assert cache._memory.extent is not home
    for one in caches:
        one.free()
    assert all(extent.free == extent.count for extent in engine.budget.arena.extents)
