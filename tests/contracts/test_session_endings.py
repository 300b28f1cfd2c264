"""How stored sessions end: finished, aborted, paused, expired, and what stays."""

import asyncio
from dataclasses import replace

import pytest

from orchestrator.steering.rounds import GivenUp
from orchestrator.store import StoreOptions
from services.contract.errors import DataLoss, NotFound, SessionAborted, StoreError
from services.contract.types import FinishReason, SessionStatus
from tests.contracts.backends import KEY, NEW, begun
from tests.waiting import until

EPHEMERAL = replace(NEW, ephemeral=True)


@pytest.mark.parametrize(
    "stop",
    [
        "\n\nUser: é",
        "",
        "token:5",
        0,
        2**32 - 1,
        None,
        GivenUp("a: b"),
        GivenUp("a: b", costly=True),
    ],
)
async def test_a_finished_session_keeps_its_text_and_reason(store, stop):
    await begun(store, 7)
    await store.finish(KEY, 1, 1, FinishReason.STOP, stop)
    stored = await store.get(KEY)
    assert (stored.status, stored.finish_reason) == (SessionStatus.FINISHED, FinishReason.STOP)
    assert (stored.matched_stop, stored.committed, stored.lease_until_ms) == (stop, (7,), 0)


async def test_finish_may_be_repeated_but_not_changed(store):
    await store.create(KEY, NEW)
    await store.finish(KEY, 1, 0, FinishReason.STOP)
    await store.finish(KEY, 1, 0, FinishReason.STOP)
    with pytest.raises(StoreError):
        await store.finish(KEY, 1, 0, FinishReason.LENGTH)


async def test_finish_refuses_a_text_of_another_length(store):
    await begun(store, 7)
    with pytest.raises(DataLoss):
        await store.finish(KEY, 1, 2, FinishReason.STOP)
    with pytest.raises(StoreError):
        await store.finish(KEY, 1, 0, FinishReason.STOP)
    assert (await store.get(KEY)).status is SessionStatus.ACTIVE


async def test_nothing_is_committed_after_the_finish(store):
    await begun(store, 7)
    await store.finish(KEY, 1, 1, FinishReason.STOP)
    with pytest.raises(StoreError):
        await store.commit(KEY, 1, 2, 1, [8])
    assert await store.commit(KEY, 1, 1, 0, [7]) == 1
    with pytest.raises(StoreError):
        await store.commit(KEY, 1, 1, 0, [9])


async def test_a_finished_session_is_acquired_as_it_is(store):
    await store.create(KEY, NEW)
    await store.finish(KEY, 1, 0, FinishReason.STOP)
    taken = await store.acquire(KEY, "o2")
    assert (taken.status, taken.term, taken.owner) == (SessionStatus.FINISHED, 1, "o1")


async def test_a_paused_session_resumes(store):
    await begun(store, 7)
    await store.pause(KEY, 1)
    paused = await store.get(KEY)
    assert (paused.status, paused.lease_until_ms) == (SessionStatus.PAUSED, 0)
    taken = await store.acquire(KEY, "o1")
    assert (taken.status, taken.term, taken.committed) == (SessionStatus.ACTIVE, 2, (7,))


async def test_a_finished_session_cannot_be_paused(store):
    await store.create(KEY, NEW)
    await store.finish(KEY, 1, 0, FinishReason.STOP)
    await store.pause(KEY, 1)
    assert (await store.get(KEY)).status is SessionStatus.FINISHED


async def test_abort_leaves_a_tombstone_that_refuses_late_writes_of_any_term(store):
    await store.create(KEY, NEW)
    assert await store.abort(KEY) is SessionStatus.ABORTED
    assert await store.abort(KEY) is SessionStatus.ABORTED
    for term in (1, 2):
        with pytest.raises(SessionAborted):
            await store.commit(KEY, term, 1, 0, [7])
        with pytest.raises(SessionAborted):
            await store.finish(KEY, term, 0, FinishReason.STOP)
    taken = await store.acquire(KEY, "o2")
    assert (taken.status, taken.term) == (SessionStatus.ABORTED, 1)
    assert taken.finish_reason is FinishReason.ABORT
    assert not (await store.create(KEY, NEW)).created
    assert (await store.look(KEY)).status is SessionStatus.ABORTED


async def test_abort_of_a_finished_session_says_so(store):
    await store.create(KEY, NEW)
    await store.finish(KEY, 1, 0, FinishReason.STOP)
    assert await store.abort(KEY) is SessionStatus.FINISHED
    assert (await store.get(KEY)).finish_reason is FinishReason.STOP


@pytest.mark.parametrize("ending", ["finish", "abort"])
async def test_an_ephemeral_session_keeps_no_text_after_its_end(store, backend, ending):
    await store.create(KEY, EPHEMERAL)
    await store.commit(KEY, 1, 1, 0, [7, 8], b"stats")
    assert (await store.acquire(KEY, "o1")).committed == (7, 8)
    if ending == "finish":
        await store.finish(KEY, 2, 2, FinishReason.STOP, "secret")
    else:
        await store.abort(KEY)
    stored = await store.get(KEY)
    assert (stored.prompt, stored.committed, stored.resolved) == ((), (), b"")
    assert (stored.matched_stop, stored.prompt_len, stored.committed_len) == (None, 3, 2)
    assert await store.rounds(KEY) == ()
    assert len(await backend.keys()) == 1


async def test_a_commit_repeated_after_an_ephemeral_end_is_known(store):
    await begun(store, 7, new=EPHEMERAL)
    await store.finish(KEY, 1, 1, FinishReason.STOP)
    assert await store.commit(KEY, 1, 1, 0, [7]) == 1


async def test_a_session_expires_when_nothing_is_written(backend):
    store, client = await backend.store(StoreOptions(ttl_ms=60_000)), backend.client()
    await begun(store, 7)
    for key in await backend.keys():
        assert 0 < await client.pttl(key) <= 60_000
        await client.pexpire(key, 1)
    await until(backend.empty)
    with pytest.raises(NotFound):
        await store.get(KEY)


async def test_commits_keep_a_session_alive(backend):
    store = await backend.store(StoreOptions(ttl_ms=60_000))
    await begun(store, 7)
    client = backend.client()
    for key in await backend.keys():
        await client.pexpire(key, 5_000)
    before = (await store.get(KEY)).lease_until_ms
    await asyncio.sleep(0.01)
    await store.commit(KEY, 1, 2, 1, [8])
    left = [await client.pttl(key) for key in await backend.keys()]
    assert len(left) == 3
    assert all(ttl > 50_000 for ttl in left)
    assert (await store.get(KEY)).lease_until_ms > before


async def test_the_end_starts_the_shorter_expiry(backend):
    store = await backend.store(StoreOptions(ttl_ms=60_000, finished_ttl_ms=100))
    await begun(store, 7)
    await store.finish(KEY, 1, 1, FinishReason.LENGTH)
    await until(backend.empty)
