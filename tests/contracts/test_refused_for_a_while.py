"""A server that is there and takes nothing for a while, or answers late: a pause, and no loss."""

import asyncio
from collections.abc import Iterator

import pytest
from redis import exceptions
from redis.asyncio.connection import DefaultParser

from orchestrator.steering.rounds import Ending
from orchestrator.store import RedisSessionStore, WriterOptions
from orchestrator.store.delivery import OneServer
from services.contract.errors import StoreError
from services.contract.types import FinishReason, SessionStatus
from services.runtime.redis_client import is_away, kind_of
from testkit.chaos.proxy import Network
from testkit.redis_servers import folder_of_servers
from tests.contracts.backends import KEY, NEW, Backend
from tests.contracts.conftest import needs_redis
from tests.contracts.owners import Owner
from tests.waiting import until

LENGTH = Ending(FinishReason.LENGTH)
WHILE = (
    "OOM command not allowed when used memory > 'maxmemory'. script: 5f, on @user_script:7.",
    "ERR Error running script (call to f_5f): @user_script:9: @user_script: 9: -OOM command not "
    "allowed when used memory > 'maxmemory'.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "LOADING Redis is loading the dataset in memory",
    "READONLY You can't write against a read only replica.",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "CLUSTERDOWN The cluster is down",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "NOREPLICAS Not enough good replicas to write.",
)
FOR_GOOD = (
    "ERR unknown command 'EVALSHA'",
    "NOPERM User default has no permissions to run the 'evalsha' command",
    "WRONGTYPE Operation against a key holding the wrong kind of value",
    "BUSYGROUP Consumer Group name already exists",
    "ERR the word -OOMPH means nothing",
)


def said(line: str) -> Exception:
    return DefaultParser.parse_error(line)


@pytest.mark.parametrize("line", WHILE, ids=lambda line: line[:24])
def test_waiting_helps_where_the_server_says_so_however_it_words_it(line):
    assert is_away(said(line))
    assert kind_of(said(line)) in line


@pytest.mark.parametrize("line", FOR_GOOD, ids=lambda line: line[:24])
def test_waiting_does_not_help_where_the_server_refuses(line):
    assert not is_away(said(line))


@pytest.fixture(params=["valkey", pytest.param("redis_server", marks=needs_redis)])
async def full(request):
    """A server, and a client of it that may say how much memory it may take."""
    backend = Backend(url=request.getfixturevalue(request.param).url)
    client = backend.client()
    yield backend, client
    await client.config_set("maxmemory", 0)
    await client.flushall()
    await backend.close()


async def test_a_full_server_is_a_pause_for_every_write(full):
    backend, client = full
    store = await backend.store()
    owner = await Owner.create(store, 7)
    await client.config_set("maxmemory", 1)
    writes = [owner.write(8), owner.write(9, end=LENGTH), store.create(KEY, NEW)]
    await until(lambda: store.away_s)
    assert not any(write.done() for write in writes)
    assert not await store.answers()
    await client.config_set("maxmemory", 0)
    assert [*await asyncio.gather(*writes)][:2] == [2, 3]
    stored = await store.get(KEY)
    assert (stored.status, stored.committed) == (SessionStatus.FINISHED, (7, 8, 9))
    assert owner.refused == []


async def test_a_server_that_stays_full_is_given_up_in_time_and_named(full):
    backend, client = full
    store = await backend.store(writer=WriterOptions(patience_s=0.2))
    owner = await Owner.create(store, 7)
    await client.config_set("maxmemory", 1)
    with pytest.raises(StoreError, match="takes no writes for now: OOM"):
        await owner.write(8)


class Refusing:
    """Answers the call at `place` of one pipeline with an error, without making it."""

    def __init__(self, monkeypatch, place: int, line: str) -> None:
        self.place, self.line, self.left = place, line, 1
        made = OneServer.execute

        async def execute(server, calls):
            if not self.left or len(calls) <= self.place:
                return await made(server, calls)
            self.left -= 1
            others = [*calls[: self.place], *calls[self.place + 1 :]]
            replies = await made(server, others) if others else []
            replies.insert(self.place, said(self.line))
            return replies

        monkeypatch.setattr(OneServer, "execute", execute)


@pytest.mark.parametrize("line", WHILE, ids=lambda line: line[:24])
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_one_refusal_in_the_middle_loses_and_doubles_nothing(store, monkeypatch, place, line):
    owner = await Owner.create(store, 7)
    Refusing(monkeypatch, place, line)
    writes = [owner.write(8), owner.write(9), owner.write(10, end=LENGTH)]
    assert await asyncio.gather(*writes) == [2, 3, 4]
    stored = await store.get(KEY)
    assert (stored.status, stored.committed) == (SessionStatus.FINISHED, (7, 8, 9, 10))
    assert len(await store.rounds(KEY)) == 4


async def test_the_last_round_and_the_end_are_one_write(store):
    owner = await Owner.create(store, 7)
    assert await owner.write(8, end=Ending(FinishReason.STOP, "\n")) == 2
    again = store.commit(KEY, 1, owner.round, 1, [8], end=Ending(FinishReason.STOP, "\n"))
    assert await again == 2
    for end in (LENGTH, None):
        with pytest.raises(StoreError):
            await store.commit(KEY, 1, owner.round + 1, 2, [9], end=end)
    with pytest.raises(StoreError, match="conflict"):
        await store.commit(KEY, 1, owner.round, 1, [8], end=LENGTH)
    stored = await store.get(KEY)
    assert (stored.finish_reason, stored.matched_stop) == (FinishReason.STOP, "\n")
    assert stored.committed == (7, 8)


async def test_what_was_too_much_at_once_goes_in_halves(store, monkeypatch):
    """A wire that takes three calls at a time, and times out with more."""
    await store.create(KEY, NEW)
    made, sizes = OneServer.execute, list[int]()

    async def execute(server, calls):
        sizes.append(len(calls))
        if len(calls) > 3:
            raise exceptions.TimeoutError("too many")
        return await made(server, calls)

    monkeypatch.setattr(OneServer, "execute", execute)
    writes = [store.commit(KEY, 1, r + 1, r, [r]) for r in range(24)]
    assert await asyncio.gather(*writes) == list(range(1, 25))
    assert sizes[:4] == [24, 12, 6, 3]
    assert len(sizes) < 20


@pytest.fixture
def far() -> Iterator[tuple[RedisSessionStore, object]]:
    """A server with a password, behind a wire; its URL and the wire."""
    with folder_of_servers() as (_, start), Network() as network:
        server = start("requirepass secret", options={"password": "secret"})
        asyncio.run(server.ready())
        proxy = network.proxy(lambda: f"127.0.0.1:{server.port}")
        yield f"redis://:secret@{proxy.address}", proxy


async def test_a_server_that_is_far_away_is_found_again(far):
    """Login, who it is and a call: each takes a second of the two that it may."""
    url, wire = far
    backend = Backend(url=url)
    store = await backend.store(writer=WriterOptions(patience_s=30.0))
    owner = await Owner.create(store, 7)
    wire.delay(0.5)
    wire.cut()
    assert await owner.write(8) == 2
    wire.heal()
    await backend.close()
