"""In place of a store, for sessions that nobody could resume."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from orchestrator.session.ports import Holder, SessionKey

_T = TypeVar("_T")


class NullStore:
    """A `SessionKeeper` that keeps nothing: all that it is handed counts as written at once."""

    def hold(self, key: SessionKey, term: int, holder: Holder) -> None:
        """Nobody else could take the session over."""

    def release(self, key: SessionKey, term: int) -> None:
        """See `hold`."""

    def commit(
        self,
        key: SessionKey,  # noqa: ARG002
        term: int,  # noqa: ARG002
        round: int,  # noqa: ARG002
        base_len: int,
        token_ids: Sequence[int],
        *_: object,
        **__: object,
    ) -> Awaitable[int]:
        """The length after these tokens."""
        return _done(base_len + len(token_ids))

    def finish(self, *_: object, **__: object) -> Awaitable[None]:
        """Nothing is left to end."""
        return _done(None)

    def pause(self, *_: object, **__: object) -> Awaitable[None]:
        """Nobody goes on with it."""
        return _done(None)


def _done(value: _T) -> asyncio.Future[_T]:
    future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future
