"""What clients read of stored sessions holds up no write, and is bounded, however long they are."""

import asyncio
from dataclasses import replace

import pytest

from orchestrator.frontdoor.admission import Work
from orchestrator.frontdoor.known_sessions import KnownSessions
from orchestrator.session.ports import Call, Outline, SessionKey
from orchestrator.store import codec
from orchestrator.store.calls import nothing, prepare
from orchestrator.store.delivery import OneServer, pipeline_of
from orchestrator.store.room import Room
from services.contract.errors import DataLoss, Fenced, NotFound, StoreError
from services.contract.types import SessionStatus
from tests.contracts.backends import KEY, NEW, begun
from tests.contracts.owners import Owner

FIRST = Call("reader", 1)
READS = {"look", "get", "rounds"}
LONG = replace(NEW, prompt=tuple(range(100_000)), resolved=b"r" * 50_000)


@pytest.fixture
def held(monkeypatch):
    """Reads that reach the server only once this is set; the sizes of what they expect."""
    made, go_on = OneServer.execute, asyncio.Event()

    async def execute(server, calls):
        if READS & {call.script for call in calls}:
            assert {call.script for call in calls} <= READS
            await go_on.wait()
        return await made(server, calls)

    monkeypatch.setattr(OneServer, "execute", execute)
    return go_on


async def test_no_write_waits_for_a_read(store, held):
    owner = await Owner.create(store, 7)
    reads = [store.get(KEY), store.look(KEY), store.rounds(KEY)]
    assert await asyncio.gather(owner.write(8), owner.write(9)) == [2, 3]
    assert not any(read.done() for read in reads)
    held.set()
    stored, outline, rounds = await asyncio.gather(*reads)
    assert (stored.committed, outline.committed_len, len(rounds)) == ((7, 8, 9), 3, 3)


async def test_a_read_comes_after_the_writes_before_it_also_where_their_caller_left(store):
    await store.create(KEY, NEW)
    writes = [store.commit(KEY, 1, r + 1, r, [r]) for r in range(20)]
    asked = store.look(KEY)
    for write in writes:
        write.cancel()
    assert (await asked).committed_len == 20


async def test_an_outline_is_short_however_long_the_session_is(store):
    await begun(store, 1, 2, new=LONG)
    assert await store.look(KEY) == Outline(
        SessionStatus.ACTIVE, 1, 100_000, 2, NEW.seed, None,
        (await store.get(KEY)).created_ms, 0, 1, 4 * 100_000 + 50_000 + 4 * 2,
    )  # fmt: skip


async def test_an_outline_of_nothing_and_of_a_torn_text_is_refused(store, backend):
    with pytest.raises(NotFound):
        await store.look(KEY)
    await begun(store, 1, 2)
    await backend.client().delete(*[key for key in await backend.keys() if b"tokens" in key])
    with pytest.raises(DataLoss):
        await store.look(KEY)


async def test_a_field_that_an_older_version_stored_is_not_read(store, backend):
    await begun(store, 1, 2)
    meta = next(key for key in await backend.keys() if key.endswith(b"meta"))
    await backend.client().hset(meta, "request", b"x" * 1_000_000)
    assert (await store.look(KEY)).size < 100
    assert (await store.get(KEY)).committed == (1, 2)


async def test_who_acquires_hears_of_a_faster_owner_and_of_a_store_that_fell_back(store, held):
    await begun(store, 7)
    first = asyncio.ensure_future(store.acquire(KEY, "o2"))
    second = asyncio.ensure_future(store.acquire(KEY, "o3"))
    await store.attend(KEY, 0, FIRST)
    held.set()
    with pytest.raises(Fenced):
        await first
    assert ((await second).term, (await second).owner) == (3, "o3")


async def test_a_session_that_fell_back_between_its_acquisition_and_its_text_is_not_taken(
    store, backend, held
):
    await begun(store, 7)
    asked = asyncio.ensure_future(store.acquire(KEY, "o2"))
    await store.attend(KEY, 0, FIRST)
    meta = next(key for key in await backend.keys() if key.endswith(b"meta"))
    await backend.client().hset(meta, "term", "1")
    held.set()
    with pytest.raises(StoreError, match="fell back"):
        await asked


async def test_a_pipeline_is_bounded_by_what_comes_back(store):
    keys = codec.keys_of("paceline:", KEY)
    asked = prepare(store._writer, "get", KEY, keys, (), nothing)._replace(expects=1000)
    assert len(pipeline_of([asked] * 20, 4000)) == 3


async def test_of_a_tenant_only_so_many_bytes_are_read_at_once_and_no_other_waits_for_them():
    room, inside = Room(100, 200), list[str]()
    leave = asyncio.Event()

    async def read(tenant: str, size: int) -> None:
        async with room.take(tenant, size):
            inside.append(tenant)
            await leave.wait()

    tasks = [asyncio.create_task(read("acme", size)) for size in (60, 60, 30, 1000)]
    tasks.append(asyncio.create_task(read("other", 100)))
    await asyncio.sleep(0.01)
    # The third of acme would fit, and waits behind the second: a long one must have its turn.
    assert inside == ["acme", "other"]
    late = asyncio.create_task(read("third", 50))
    await asyncio.sleep(0.01)
    assert "third" not in inside
    tasks[1].cancel()
    leave.set()
    ends = await asyncio.gather(*tasks, late, return_exceptions=True)
    assert [type(end) for end in ends if end] == [asyncio.CancelledError]
    assert sorted(inside) == ["acme"] * 3 + ["other", "third"]
    async with asyncio.timeout(5), room.take("acme", 100), room.take("other", 100):
        pass


async def test_who_asks_is_charged(store):
    work = Work(0.25, lambda: 0.0)
    known = KnownSessions(store, work)
    key = SessionKey("acme", "long")
    await store.create(key, LONG)
    calls = 0
    while not work.owed("acme"):
        await known.get(key)
        calls += 1
    assert 10 < calls < 10_000
    assert not work.owed("other")
