"""What is read of stored sessions, by connections of its own: no write waits for it.

How long a session is, its client chooses, and how often it is read, too. So a short call says
first how long it is, and the long one waits for room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from orchestrator.session.ports import Outline, SessionKey, StoredRound, StoredSession
from orchestrator.store import codec
from orchestrator.store.calls import prepare
from orchestrator.store.command import Arg, Reply
from orchestrator.store.delivery import DeliveryOptions, servers
from orchestrator.store.lanes import sender
from orchestrator.store.options import StoreOptions
from orchestrator.store.room import Room
from orchestrator.store.under_way import UnderWay
from orchestrator.store.writer import WriterOptions
from services.contract.errors import Fenced, StoreError
from services.contract.types import SessionStatus
from services.runtime.redis_client import Client

T = TypeVar("T")

ROUND_BYTES = 1024
"""Of one round's record, about: tokens that were not taken, and who drafted them."""


class Reads:
    """Belongs to the event loop; between `start` and `close`."""

    def __init__(
        self, client: Client, writing: WriterOptions, options: StoreOptions, writes: UnderWay
    ) -> None:
        """`writes`: those on their way, which a read of the same session comes after."""
        # What the server may have lost is for the writes to learn, in the order of their answers.
        reading = DeliveryOptions(writing.max_bytes, writing.replicas, losses=False)
        self._sender = sender(servers(client, reading), writing)
        self._options, self._writes, self._room = options, writes, Room()

    def start(self) -> None:
        """Start reading."""
        self._sender.start()

    async def close(self, timeout: float) -> None:
        """Answer what is asked, for at most `timeout` seconds, then fail the rest."""
        await self._sender.close(timeout)

    @property
    def away_s(self) -> float:
        """For how long a server has not told what it is asked, in seconds."""
        return self._sender.away_s

    def look(self, key: SessionKey) -> asyncio.Future[Outline]:
        """See `SessionStore.look`."""
        return self._ask("look", key, codec.OUTLINE, codec.decode_outline)

    async def get(self, key: SessionKey) -> StoredSession:
        """See `SessionStore.get`."""
        return await self._whole(key, (await self.look(key)).size)

    async def taken(
        self, key: SessionKey, taking: Awaitable[tuple[SessionStatus, int, int]], owner: str
    ) -> StoredSession:
        """The session as it was acquired. Raises Fenced where somebody else was faster."""
        status, term, size = await taking
        stored = await self._whole(key, size)
        if status is not SessionStatus.ACTIVE:
            return stored
        if stored.term < term:
            raise StoreError(f"session {key.session_id!r}: the store fell back while it was read")
        if (stored.term, stored.owner) != (term, owner):
            raise Fenced(f"session {key.session_id!r} has another owner now")
        return stored

    async def rounds(self, key: SessionKey) -> tuple[StoredRound, ...]:
        """See `SessionStore.rounds`."""
        size = self._options.rounds_kept * ROUND_BYTES
        async with self._room.take(key.tenant, size):
            return await self._ask("rounds", key, (), codec.decode_rounds, size)

    async def _whole(self, key: SessionKey, size: int) -> StoredSession:
        async with self._room.take(key.tenant, size):
            return await self._ask("get", key, codec.WHOLE, codec.decode_session, size)

    def _ask(
        self,
        name: str,
        key: SessionKey,
        args: Sequence[Arg],
        decode: Callable[[Reply], T],
        expects: int = 0,
    ) -> asyncio.Future[T]:
        keys = codec.keys_of(self._options.prefix, key)
        call = prepare(self._sender, name, key, keys, args, decode)._replace(expects=expects)
        before = self._writes.before(keys[0])
        if before is None:
            return self._sender.send(call)
        before.add_done_callback(lambda _: self._sender.send(call))
        return call.answer
