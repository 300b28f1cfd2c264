"""What the store knows of sessions, read at the expense of the tenant that asks."""

from __future__ import annotations

from paceline.together import completion_id

from orchestrator.frontdoor.admission import Work
from orchestrator.session.ports import (
    Call,
    Outline,
    SessionKey,
    SessionStore,
    StoredRound,
    StoredSession,
)
from services.contract.errors import NotFound

CALL_SECONDS = 5e-4
"""CPU seconds of one call that asks the store."""
BYTE_SECONDS = 2e-8
"""Of each byte that it tells: receiving, unpacking, checking."""


class KnownSessions:
    """Belongs to the event loop. Raises what `SessionStore` does."""

    def __init__(self, store: SessionStore, work: Work | None) -> None:
        self._store, self._work = store, work

    async def look(self, key: SessionKey) -> Outline:
        """What is short of a session."""
        self.charge(key)
        return await self._store.look(key)

    async def get(self, key: SessionKey) -> StoredSession:
        """All of a session."""
        self.charge(key)
        return self._told(key, await self._store.get(key))

    async def acquire(self, key: SessionKey, owner: str, call: Call | None) -> StoredSession:
        """All of a session, owned."""
        self.charge(key)
        return self._told(key, await self._store.acquire(key, owner, call))

    async def rounds(self, key: SessionKey) -> tuple[StoredRound, ...]:
        """Its newest rounds."""
        self.charge(key)
        rounds = await self._store.rounds(key)
        self._spend(key, BYTE_SECONDS * sum(len(one.record) for one in rounds))
        return rounds

    async def find(self, key: SessionKey) -> Outline:
        """As `look`; NotFound names the sessions of a request with several completions."""
        try:
            return await self.look(key)
        except NotFound as error:
            if not (parts := await self.completions(key)):
                raise
            first, last = parts[0].session_id, parts[-1].session_id
            raise NotFound(
                f"{error}: request {key.session_id!r} has {len(parts)} completions, each a session "
                f"of its own, {first!r} to {last!r}"
            ) from error

    async def completions(self, key: SessionKey) -> list[SessionKey]:
        """The sessions of a request with several completions; none of any other."""
        try:
            count = (await self.look(SessionKey(key.tenant, completion_id(key.session_id, 0)))).n
        except NotFound:
            return []
        if count == 1:
            return []
        ids = (completion_id(key.session_id, index) for index in range(count))
        return [SessionKey(key.tenant, name) for name in ids]

    def charge(self, key: SessionKey) -> None:
        """For a call about a session."""
        self._spend(key, CALL_SECONDS)

    def _told(self, key: SessionKey, stored: StoredSession) -> StoredSession:
        tokens = len(stored.prompt) + len(stored.committed)
        self._spend(key, BYTE_SECONDS * (4 * tokens + len(stored.resolved)))
        return stored

    def _spend(self, key: SessionKey, seconds: float) -> None:
        if self._work is not None:
            self._work.spend(key.tenant, seconds)
