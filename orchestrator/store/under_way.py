"""Which sessions have writes on their way: what is read of these comes after them."""

from __future__ import annotations

import asyncio
from functools import partial

from orchestrator.store.command import Call


class UnderWay:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        # By the session's first key: who waits for its latest call.
        self._latest: dict[str, list[asyncio.Future[None]]] = {}

    def note(self, call: Call) -> Call:
        """The call, which is told here once it is settled; it is about to leave."""
        session, waiting = call.keys[0], list[asyncio.Future[None]]()
        self._latest[session] = waiting
        return call._replace(on_settled=partial(self._settled, session, waiting))

    def before(self, session: str) -> asyncio.Future[None] | None:
        """Done once all that left until now is settled; None: it is."""
        waiting = self._latest.get(session)
        if waiting is None:
            return None
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(over)
        return over

    def _settled(self, session: str, waiting: list[asyncio.Future[None]]) -> None:
        if self._latest.get(session) is waiting:
            del self._latest[session]
        for over in waiting:
            over.set_result(None)
