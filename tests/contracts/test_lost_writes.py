"""A server that loses what it acknowledged gets it back from those who remember it.

Only once the server shows the loss itself: another process, or a failover.
"""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from fakeredis import FakeServer

from orchestrator.session.ports import SessionKey
from orchestrator.store import RedisSessionStore, StoreOptions, WriterOptions
from orchestrator.store.delivery import pipeline_of
from orchestrator.store.server_identity import Identity, parse_identity, shows_loss
from services.contract.errors import DataLoss, Fenced, NotFound, SessionAborted
from services.contract.types import FinishReason, SessionStatus
from services.runtime.embedded_redis import EmbeddedRedis
from tests.contracts.backends import KEY, NEW, Backend
from tests.contracts.owners import Owner, text_of
from tests.contracts.replicas import ask, follow, lag, take_its_place
from tests.waiting import until

QUICK = StoreOptions(lease_ms=300)


@pytest.fixture
def server(request) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(append_only=getattr(request, "param", False)) as server:
        yield server


on_disk = pytest.mark.parametrize("server", [True], indirect=True, ids=["on disk"])


@pytest.fixture
async def backend(server):
    backend = Backend(url=server.url)
    yield backend
    await backend.close()


def restart(server: EmbeddedRedis) -> None:
    """Kill it, so that nothing is saved on the way out, and start it again."""
    os.kill(server.pid, signal.SIGKILL)
    server.restart()


async def test_a_server_that_restarts_empty_gets_a_live_session_back(backend, store, server):
    owner = await Owner.create(store, 7, 8)
    restart(server)
    assert await owner.write(9) == 3
    stored = await store.get(KEY)
    assert stored.committed == (7, 8, 9)
    assert stored.resolved == NEW.resolved
    assert (stored.prompt, stored.seed) == (NEW.prompt, NEW.seed)
    assert (stored.term, stored.owner, stored.target_fingerprint) == (1, "o1", "f1")
    assert stored.status is SessionStatus.ACTIVE
    assert (await store.acquire(KEY, "o2")).committed == (7, 8, 9)
    assert all([await ask(server, "PTTL", key) > 0 for key in await backend.keys()])
    assert owner.refused == []


async def test_a_server_that_falls_back_to_an_older_snapshot_gets_the_rest_back(store, server):
    owner = await Owner.create(store, 7)
    await ask(server, "SAVE")
    await owner.write(8)
    restart(server)
    assert await text_of(store) == [7]
    assert await owner.write(9) == 3
    assert await text_of(store) == [7, 8, 9]
    assert await owner.write(10) == 4


async def test_writes_under_way_when_the_server_dies_are_stored_once_each(store, server):
    owner = await Owner.create(store, 1)
    os.kill(server.pid, signal.SIGSTOP)
    writes = [owner.write(number) for number in (2, 3, 4)]
    await asyncio.sleep(0.1)
    restart(server)
    assert await asyncio.gather(*writes) == [2, 3, 4]
    assert await text_of(store) == [1, 2, 3, 4]


async def test_an_end_under_way_when_the_server_dies_is_stored(store, server):
    owner = await Owner.create(store, 1)
    restart(server)
    last = owner.write(2)
    await store.finish(KEY, 1, 2, FinishReason.LENGTH)
    assert await last == 2
    stored = await store.get(KEY)
    assert (stored.status, stored.committed) == (SessionStatus.FINISHED, (1, 2))


async def test_a_pause_leaves_all_of_the_session_behind(store, server):
    owner = await Owner.create(store, 1)
    await ask(server, "SAVE")
    await owner.write(2)
    restart(server)
    await store.pause(KEY, 1)
    stored = await store.get(KEY)
    assert (stored.status, stored.committed) == (SessionStatus.PAUSED, (1, 2))


async def test_a_session_that_writes_nothing_is_given_back_as_well(backend, server):
    store = await backend.store(QUICK)
    owner = await Owner.create(store, 7)
    restart(server)

    async def there() -> bool:
        try:
            return await text_of(store) == [7]
        except NotFound:
            return False

    await until(there)
    assert owner.refused == []


async def test_a_failover_to_a_replica_that_lagged_gets_the_rest_back(store, server):
    owner = await Owner.create(store, 7)
    with EmbeddedRedis() as replica:
        await follow(replica, server)
        await lag(replica, server)
        await owner.write(8)
        take_its_place(replica, server)
        assert await owner.write(9) == 3
        assert await text_of(store) == [7, 8, 9]
        await store.close()


async def test_a_failover_that_breaks_no_connection_is_noticed(store, server):
    owner = await Owner.create(store, 7)
    await ask(server, "REPLICAOF", "127.0.0.1", "1")
    await ask(server, "REPLICAOF", "NO", "ONE")
    await ask(server, "FLUSHALL")
    assert await owner.write(8) == 2
    assert await text_of(store) == [7, 8]


async def test_absence_alone_gives_nothing_back(store, server):
    owner = await Owner.create(store, 7)
    await ask(server, "FLUSHALL")
    with pytest.raises(DataLoss):
        await owner.write(8)
    with pytest.raises(NotFound):
        await store.get(KEY)


async def test_a_loss_before_the_last_acknowledged_write_counts_no_more(backend, server):
    owner = await Owner.create(await backend.store())
    restart(server)
    await owner.write(7)
    await ask(server, "FLUSHALL")
    with pytest.raises(DataLoss):
        await owner.write(8)
    assert await backend.keys() == []


async def test_nothing_is_given_back_for_a_session_that_was_released(backend, server):
    owner = await Owner.create(await backend.store(), 7)
    owner.release()
    restart(server)
    with pytest.raises(DataLoss):
        await owner.write(8)
    assert await backend.keys() == []


async def test_a_server_that_does_not_say_who_it_is_never_shows_a_loss():
    backend = Backend(fake=FakeServer())
    owner = await Owner.create(await backend.store())
    await backend.client().flushall()
    with pytest.raises(DataLoss):
        await owner.write(8)
    await backend.close()


@pytest.mark.parametrize("first", ["lower", "higher"])
async def test_of_two_that_give_a_session_back_the_later_owner_wins(backend, server, first):
    stores = [await backend.store(), await backend.store()]
    lower = await Owner.create(stores[0], 1, name="o1")
    higher = await Owner.take(stores[1], "o2")
    await higher.write(2)
    restart(server)
    if first == "lower":
        assert await lower.write(9) == 2
        assert await higher.write(3) == 3
    else:
        assert await higher.write(3) == 3
    with pytest.raises(Fenced):
        await lower.write(10)
    assert await text_of(stores[0]) == [1, 2, 3]
    assert (await stores[0].get(KEY)).term == 2


async def test_two_owners_of_one_term_are_told_apart(backend, server):
    """A server that forgot an acquire gives its term again; lengths may be equal by chance."""
    stores = [await backend.store(), await backend.store()]
    await (await Owner.create(stores[0])).write(1)
    await ask(server, "SAVE")
    before = await Owner.take(stores[0], "o1")
    await before.write(2)
    restart(server)
    after = await Owner.take(stores[1], "o2")
    assert after.term == before.term
    await after.write(5)
    with pytest.raises(Fenced):
        await before.write(3)
    assert await after.write(6) == 3
    assert await text_of(stores[0]) == [1, 5, 6]


async def test_what_an_older_owner_ended_after_the_loss_has_ended(backend, server):
    stores = [await backend.store(), await backend.store()]
    older = await Owner.create(stores[0], 1)
    await ask(server, "SAVE")
    later = await Owner.take(stores[1], "o2")
    await later.write(2)
    restart(server)
    await older.write(9)
    await stores[0].finish(KEY, 1, 2, FinishReason.STOP)
    with pytest.raises((Fenced, DataLoss)):
        await later.write(3)
    assert [type(error) for error in later.refused] == [Fenced]
    stored = await stores[1].get(KEY)
    assert (stored.status, stored.committed) == (SessionStatus.FINISHED, (1, 9))


async def test_who_took_the_id_anew_after_the_loss_is_not_written_over(backend, server):
    stores = [await backend.store(), await backend.store()]
    before = await Owner.create(stores[0], 1, 2, name="o1")
    restart(server)
    anew = await Owner.create(stores[1], 5, name="o2")
    with pytest.raises(Fenced):
        await before.write(3)
    assert await anew.write(6) == 2
    assert await text_of(stores[0]) == [5, 6]


@on_disk
@pytest.mark.parametrize("ending", ["abort", "finish"])
async def test_an_end_that_the_server_kept_wins_over_every_owner(backend, store, server, ending):
    other, owner = await backend.store(), await Owner.create(store, 7)
    if ending == "abort":
        await other.abort(KEY)
    else:
        taken = await Owner.take(other, "o2")
        await other.finish(KEY, taken.term, 1, FinishReason.STOP)
        taken.release()
    await ask(server, "SAVE")
    server.restart()
    with pytest.raises(SessionAborted if ending == "abort" else Fenced):
        await owner.write(8)
    assert await text_of(other) == [7]


async def test_long_sessions_are_given_back_in_pipelines_of_bounded_size(backend, server):
    store = await backend.store(writer=WriterOptions(max_bytes=10_000))
    keys = [SessionKey("acme", f"s-{number}") for number in range(40)]
    owners = [await Owner.create(store, key=key) for key in keys]
    await asyncio.gather(*(owner.write(*range(1_500)) for owner in owners))
    restart(server)
    writes = [owner.write(number) for number in (2, 3) for owner in owners]
    assert await asyncio.gather(*writes) == [1_501] * 40 + [1_502] * 40
    pipelines = [pipeline_of([call] * 9, 10_000) for call in _seeds(store, owners)]
    assert {len(pipeline) for pipeline in pipelines} == {1}
    for key in keys:
        assert await text_of(store, key) == [*range(1_500), 2, 3]


def _seeds(store: RedisSessionStore, owners: list[Owner]):
    held = [store._leases.get(owner.key, 1) for owner in owners]
    return [store._leases._seed(one, one.holder, lost=True) for one in held]


@on_disk
async def test_a_restart_that_kept_everything_gives_nothing_back(store, server):
    owner = await Owner.create(store, 7)
    server.restart()
    assert await owner.write(8) == 2
    assert len(await store.rounds(KEY)) == 2


@on_disk
async def test_owner_and_server_die_together_and_what_the_server_kept_on_disk_goes_on(
    backend, store, server
):
    owner = await Owner.create(store)
    await asyncio.gather(*(owner.write(number) for number in range(20)))
    await store.close()
    restart(server)
    taken = await Owner.take(await backend.store(), "o2")
    assert (taken.term, taken.text) == (2, owner.text)
    assert await taken.write(20) == 21


async def test_a_stopped_server_answers_nobody_twice_and_nobody_wrongly(store, server):
    """Replies that come after their time are never taken for those of later calls."""
    owner = await Owner.create(store, 1)
    os.kill(server.pid, signal.SIGSTOP)
    writes = [owner.write(number) for number in (2, 3)]
    # Longer than a pipeline may take.
    await asyncio.sleep(2.5)
    reads = [store.get(KEY) for _ in range(3)]
    os.kill(server.pid, signal.SIGCONT)
    assert await asyncio.gather(*writes) == [2, 3]
    assert [list((await read).committed) for read in reads] == [[1, 2, 3]] * 3
    assert len(await store.rounds(KEY)) == 3


async def test_a_close_while_the_server_is_stopped_is_bounded(store, server):
    owner = await Owner.create(store)
    os.kill(server.pid, signal.SIGSTOP)
    writes = [owner.write(number) for number in range(200)]
    try:
        async with asyncio.timeout(60):
            await store.close(0.2)
        ends = await asyncio.gather(*writes, return_exceptions=True)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert all(isinstance(end, Exception) for end in ends)
    assert store.held == 0
    await until(lambda: not [t for t in asyncio.all_tasks() if "session" in t.get_name()])


A, B, NONE = "a" * 40, "b" * 40, "0" * 40


@pytest.mark.parametrize(
    ("now", "loss"),
    [
        (Identity("r1", A, NONE), False),
        (Identity("r2", A, NONE), True),
        (Identity("r2", B, A), True),
        (Identity("r1", B, A), True),
        (Identity("r1", B, NONE), False),
    ],
    ids=["the same", "restarted", "a replica promoted", "demoted and promoted", "renamed"],
)
def test_what_shows_a_loss(now, loss):
    assert shows_loss(Identity("r1", A, NONE), now) is loss


def test_identities_are_read_from_what_a_server_says():
    assert parse_identity(b"# Server\r\nrun_id:r1\r\n", b"master_replid:x\r\n") == Identity(
        "r1", "x", NONE
    )
    assert parse_identity(b"", b"\xff\xfe no\r\n:::") is None
