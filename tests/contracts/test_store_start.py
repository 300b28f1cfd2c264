"""Starting against servers that refuse, restart or forget."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from orchestrator.store import connect
from services.contract.errors import StartError
from services.runtime.embedded_redis import EmbeddedRedis
from tests.contracts.backends import KEY, NEW
from tests.contracts.replicas import ask


@pytest.fixture
def durable() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(append_only=True) as server:
        yield server


async def refusal_of(url: str) -> str:
    with pytest.raises(StartError) as caught:
        await connect(url)
    message = str(caught.value)
    assert "\n" not in message
    assert "hunter2" not in message
    return message


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
async def test_a_refused_connection_is_one_clear_line(scheme):
    message = await refusal_of(f"{scheme}://user:hunter2@127.0.0.1:1/3?client_name=me")
    assert f"Redis at {scheme}://127.0.0.1:1/3 does not answer" in message


async def test_a_missing_socket_is_one_clear_line():
    assert "/nowhere/redis.sock does not answer" in await refusal_of("unix:///nowhere/redis.sock")


@pytest.mark.parametrize("url", ["", "http://:hunter2@h:1", "redis://h:port"])
async def test_a_url_that_says_nothing_is_one_clear_line(url):
    assert "the Redis URL is not usable" in await refusal_of(url)


async def test_a_wrong_password_is_one_clear_line(durable):
    await tell(durable, "CONFIG", "SET", "requirepass", "right")
    assert "refused the login" in await refusal_of(f"unix://:hunter2@{durable.url[7:]}")
    assert "refused the login" in await refusal_of(durable.url)


async def test_a_read_only_replica_is_one_clear_line(durable):
    await tell(durable, "REPLICAOF", "127.0.0.1", "1")
    assert "read only" in await refusal_of(durable.url)


async def test_a_user_without_the_rights_is_one_clear_line(durable):
    await tell(durable, "ACL", "SETUSER", "bob", "on", ">hunter2", "~*", "+@read", "+@connection")
    message = await refusal_of(f"unix://bob:hunter2@{durable.url[7:]}")
    assert "refused the login or a command" in message


async def test_something_that_is_not_redis_is_one_clear_line():
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    with TemporaryDirectory() as folder:
        server = await asyncio.start_unix_server(answer, Path(folder) / "web.sock")
        async with server:
            await refusal_of(f"unix://{folder}/web.sock")


async def test_a_restart_of_the_server_is_only_a_pause(durable):
    store = await connect(durable.url)
    await store.create(KEY, NEW)
    for round in (1, 3):
        await store.commit(KEY, 1, round, round - 1, [round])
        durable.end_process()
        write = store.commit(KEY, 1, round + 1, round, [round + 1])
        await asyncio.sleep(0.05)
        assert not write.done()
        durable.start()
        assert await write == round + 1
    assert (await store.get(KEY)).committed == (1, 2, 3, 4)
    await store.close()


async def test_a_store_tells_whether_the_server_takes_writes(durable):
    store = await connect(durable.url)
    assert await store.answers()
    await tell(durable, "REPLICAOF", "127.0.0.1", "1")
    assert not await store.answers()
    await tell(durable, "REPLICAOF", "NO", "ONE")
    assert await store.answers()
    durable.end_process()
    assert not await store.answers()
    durable.start()
    # Connections, and scripts that the new process has to be taught.
    assert [await store.answers() for _ in range(8)][-1]
    await store.close()


async def tell(server: EmbeddedRedis, *command: str) -> None:
    assert await ask(server, *command) in (True, b"OK")
