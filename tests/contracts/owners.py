"""An owner of a stored session as a driver is one: it remembers all that it wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from orchestrator.session.ports import Memory, NewSession, SessionKey, StoredSession
from orchestrator.steering.rounds import Ending
from orchestrator.store import RedisSessionStore
from services.contract.errors import PacelineError
from tests.contracts.backends import KEY, NEW


@dataclass
class Owner:
    """Holds one session in one term, and hears what the store tells it."""

    store: RedisSessionStore
    session: NewSession
    key: SessionKey = KEY
    term: int = 1
    text: list[int] = field(default_factory=list)
    round: int = 0
    base: int = 0
    refused: list[PacelineError] = field(default_factory=list)

    @classmethod
    async def create(
        cls, store: RedisSessionStore, *said: int, key: SessionKey = KEY, name: str = "o1"
    ) -> Owner:
        """One that has written a round of tokens, if it said any."""
        session = replace(NEW, owner=name)
        created = await store.create(key, session)
        assert created.created
        owner = cls(store, session, key, created.term)
        store.hold(key, owner.term, owner)
        if said:
            await owner.write(*said)
        return owner

    @classmethod
    async def take(cls, store: RedisSessionStore, name: str, key: SessionKey = KEY) -> Owner:
        taken: StoredSession = await store.acquire(key, name)
        owner = cls(store, replace(NEW, owner=name), key, taken.term, list(taken.committed))
        store.hold(key, owner.term, owner)
        return owner

    def write(self, *tokens: int, end: Ending | None = None) -> asyncio.Future[int]:
        """Hand a commit over, in the order of calls."""
        self.base, self.round = len(self.text), self.round + 1
        self.text += tokens
        made = self.store.commit(self.key, self.term, self.round, self.base, tokens, end=end)
        return asyncio.ensure_future(made)

    def memory(self) -> Memory:
        return Memory(self.session, tuple(self.text), self.round, self.base)

    def on_refused(self, error: PacelineError) -> None:
        self.refused.append(error)

    async def stored(self) -> bool:
        """Whether the store has all of the text."""
        return await text_of(self.store, self.key) == self.text

    async def closed_up(self) -> bool:
        """The same once one more token was written."""
        await self.write(0)
        return await self.stored()

    def release(self) -> None:
        self.store.release(self.key, self.term)


async def text_of(store: RedisSessionStore, key: SessionKey = KEY) -> Sequence[int]:
    return list((await store.get(key)).committed)
