"""The same contracts on fakeredis and on real servers."""

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from fakeredis import FakeServer

from orchestrator.store import RedisSessionStore
from services.runtime.embedded_redis import EmbeddedRedis
from tests.contracts.backends import Backend

REDIS = shutil.which("redis-server")
needs_redis = pytest.mark.skipif(not REDIS, reason="no redis-server on PATH")


@pytest.fixture(scope="session")
def valkey() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(Path(str(REDIS))) as server:
        yield server


@pytest.fixture(params=["fakeredis", "valkey", pytest.param("redis_server", marks=needs_redis)])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    if request.param == "fakeredis":
        backend = Backend(fake=FakeServer())
    else:
        backend = Backend(url=request.getfixturevalue(request.param).url)
    # The server may be shared with tests that leave something behind.
    await backend.client().flushall()
    yield backend
    # Stores may write until they are closed.
    await backend.close()
    await backend.client().flushall()
    await backend.close()


@pytest.fixture
async def store(backend: Backend) -> RedisSessionStore:
    return await backend.store()
