"""Somewhere to open session stores: fakeredis, or a real server."""

from dataclasses import dataclass, field
from typing import Any

from fakeredis import FakeAsyncRedis, FakeServer
from redis.asyncio import Redis

from orchestrator.session.ports import NewSession, SessionKey
from orchestrator.store import RedisSessionStore, StoreOptions, WriterOptions
from services.runtime.redis_client import open_client

KEY = SessionKey("acme", "s-1")
NEW = NewSession(
    digest="d1", prompt=(5, 0, 4_294_967_295), seed=2**64 - 1,
    owner="o1", resolved=b"greedy", target_fingerprint="f1",
)  # fmt: skip


async def begun(store: RedisSessionStore, *tokens: int, new: NewSession = NEW):
    """A session of one round."""
    await store.create(KEY, new)
    await store.commit(KEY, 1, 1, 0, tokens)


@dataclass
class Backend:
    """Clients and stores of one backend see the same data."""

    url: str = ""
    fake: FakeServer | None = None
    opened: list[Any] = field(default_factory=list)

    def client(self, timeout_s: float = 60.0) -> Redis:
        """One that waits for an answer as long as a busy machine may need for it."""
        fake = FakeAsyncRedis(server=self.fake) if self.fake else None
        client = fake or open_client(self.url, timeout_s=timeout_s)
        self.opened.append(client)
        return client

    async def store(
        self, options: StoreOptions | None = None, writer: WriterOptions | None = None
    ) -> RedisSessionStore:
        store = RedisSessionStore(self.client(2.0), options, writer)
        await store.start()
        self.opened.append(store)
        return store

    async def keys(self) -> list[bytes]:
        return sorted(await self.client().keys("*"))

    async def empty(self) -> bool:
        return not await self.keys()

    async def close(self) -> None:
        opened_so_far, self.opened = self.opened, []
        for opened in reversed(opened_so_far):
            await (opened.close() if isinstance(opened, RedisSessionStore) else opened.aclose())
