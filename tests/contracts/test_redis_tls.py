"""Redis behind TLS with a private CA: all of it is in the URL."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from orchestrator.store import EmbeddedRedis, connect
from services.contract.errors import StartError
from services.runtime.redis_client import open_client
from tests.certificates import Authority


@asynccontextmanager
async def behind_tls(redis: EmbeddedRedis, context: ssl.SSLContext) -> AsyncIterator[int]:
    """A port that speaks TLS and hands everything to the server's socket."""
    running: set[asyncio.Task[None]] = set()

    async def carry(reader, writer):
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader, writer):
        running.add(asyncio.current_task())
        inner = await asyncio.open_unix_connection(redis.url.removeprefix("unix://"))
        await asyncio.gather(carry(reader, inner[1]), carry(inner[0], writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def demanding(authority: Authority) -> ssl.SSLContext:
    """A server that wants a client certificate of the same CA."""
    files = authority.issue("redis")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.path)
    context.load_cert_chain(files.cert, files.key)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_a_store_behind_mutual_tls_is_reached_by_its_url_alone(tmp_path):
    ours, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    client = ours.issue("client", "orchestrator")
    shown = f"ssl_certfile={client.cert}&ssl_keyfile={client.key}"
    async with EmbeddedRedis() as redis, behind_tls(redis, demanding(ours)) as port:
        url = f"rediss://localhost:{port}"
        store = await connect(f"{url}?ssl_ca_certs={ours.path}&{shown}")
        await store.close()
        reached = open_client(f"{url}?ssl_ca_certs={ours.path}&{shown}", timeout_s=60)
        assert await reached.ping()
        await reached.aclose()
        for wrong in (
            f"?ssl_ca_certs={others.path}&{shown}",
            f"?{shown}",
            f"?ssl_ca_certs={ours.path}",
        ):
            with pytest.raises(StartError, match=rf"^Redis at rediss://localhost:{port}") as told:
                await connect(url + wrong)
            assert str(client.key) not in str(told.value)
