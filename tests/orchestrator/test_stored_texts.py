"""What was kept becomes text in slices: the loop goes on, and no tenant waits for another's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from orchestrator.frontdoor.stored_texts import SLICE_S, Slices, StoredTexts
from orchestrator.session.tenants import Tenant, TenantLimits
from services.contract.errors import Overloaded

ACME, OTHER = Tenant("acme", TenantLimits(max_sessions=2)), Tenant("other")


def busy(steps: int, last: str = "") -> Iterator[str | None]:
    """Steps that take half a slice each; the last one gives something."""
    for _ in range(steps):
        until = time.monotonic() + SLICE_S / 2
        while time.monotonic() < until:
            pass
        yield None
    yield last


async def test_others_have_their_turn_between_two_slices():
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    beside = asyncio.create_task(other())
    assert await Slices().run(busy(60, "done")) == ["done"]
    beside.cancel()
    assert turns >= 20


async def test_work_that_shares_the_loop_rests_between_its_slices():
    began, used = time.monotonic(), time.thread_time()
    await Slices(0.25).run(busy(30))
    used, lasted = time.thread_time() - used, time.monotonic() - began
    # Whatever else the machine does only makes it longer.
    assert lasted > 2 * used


async def test_one_slice_is_under_way_at_a_time():
    slices, order = Slices(), []

    def steps(name: str) -> Iterator[None]:
        for _ in busy(10):
            order.append(name)
            yield None

    await asyncio.gather(*(slices.run(steps(name)) for name in "ab"))
    changes = sum(one != other for one, other in pairwise(order))
    assert changes >= 6


async def test_what_a_step_raises_ends_the_work_and_frees_the_turn():
    def broken() -> Iterator[None]:
        yield None
        raise LookupError

    slices = Slices()
    with pytest.raises(LookupError):
        await slices.run(broken())
    assert await slices.run(busy(1, "done")) == ["done"]


async def test_a_caller_that_leaves_frees_the_turn():
    slices = Slices(0.01)
    leaving = asyncio.create_task(slices.run(busy(1000)))
    await asyncio.sleep(0.02)
    leaving.cancel()
    async with asyncio.timeout(30):
        assert await slices.run(busy(1, "done")) == ["done"]


async def test_a_tenant_waits_for_its_own_texts_and_no_other_for_them():
    texts, ended = StoredTexts(100), []

    async def read(tenant: Tenant, name: str) -> None:
        async with texts.turn(tenant):
            ended.extend(await texts.work(busy(6, name)))

    first = [asyncio.create_task(read(ACME, f"a{number}")) for number in range(8)]
    await asyncio.sleep(0)
    await asyncio.gather(*first, read(OTHER, "other"))
    assert [name for name in ended if name != "other"] == [f"a{number}" for number in range(8)]
    assert ended.index("other") <= 3


def test_a_tenant_has_as_many_readers_as_it_may_have_sessions():
    texts = StoredTexts(4)
    with texts.reader(ACME):
        with texts.reader(ACME), pytest.raises(Overloaded, match="2 readers of this tenant"):
            texts.reader(ACME).__enter__()
        with texts.reader(ACME), texts.reader(OTHER), texts.reader(OTHER):
            with pytest.raises(Overloaded, match="4 readers of sessions") as refused:
                texts.reader(OTHER).__enter__()
            assert refused.value.retry_after > 0
    assert texts.readers == 0
