"""One session's side of the store: its writes and their answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from orchestrator.session.ports import Memory, NewSession, SessionKeeper, SessionKey
from orchestrator.session.record_size import stored_size
from orchestrator.session.round_records import dump_round
from orchestrator.steering.rounds import Commit, GivenUp
from services.contract.errors import PacelineError
from services.contract.types import FinishReason


class RecordWriter:
    """Writes a session to its store, and restores it to one that lost it.

    Belongs to the event loop, until `let_go`.
    """

    def __init__(
        self,
        key: SessionKey,
        term: int,
        session: NewSession,
        committed: tuple[int, ...],
        store: SessionKeeper,
        *,
        on_persisted: Callable[[int], None],
        on_refused: Callable[[PacelineError], None],
    ) -> None:
        """`committed` is stored already. `on_persisted` gets rounds."""
        self._key, self._term, self._store = key, term, store
        self._session, self._committed = session, list(committed)
        self._round = self._round_base = 0
        # Records of rounds that are stored, and in how many commits of this term.
        self._rounds = len(committed)
        self._told = self._commits = 0
        self._on_persisted, self._refused = on_persisted, on_refused
        # From the driver's clock to Unix time, in seconds.
        self._wall = time.time() - time.monotonic()
        store.hold(key, term, self)

    def memory(self) -> Memory:
        """All that was handed to the store so far."""
        return Memory(self._session, tuple(self._committed), self._round, self._round_base)

    @property
    def size(self) -> int:
        """About how many bytes of the store the session takes."""
        size = len(self._session.resolved), len(self._session.prompt)
        return stored_size(*size, len(self._committed), self._rounds)

    def on_refused(self, error: PacelineError) -> None:
        """The session has another owner, or is gone."""
        self._refused(error)

    def persist(self, commit: Commit) -> None:
        """Hand a commit over, and the end in it; `on_persisted` or `on_refused` follows."""
        record = commit.record
        self._committed += commit.token_ids
        # Several are told as one, too.
        told = len(commit.records) + (len(commit.records) > 1)
        self._commits += 1
        self._told += told
        self._rounds += told
        self._round, self._round_base = record.round, commit.base_len
        stored: Awaitable[object] = self._store.commit(
            self._key,
            self._term,
            record.round,
            commit.base_len,
            commit.token_ids,
            dump_round(commit, self._wall, ephemeral=self._session.ephemeral),
            record.verifier,
            commit.ending,
            round(self._told / self._commits),
        )
        future = asyncio.ensure_future(stored)
        future.add_done_callback(lambda done: self._on_stored(record.round, done))

    def _on_stored(self, index: int, done: asyncio.Future[object]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._on_persisted(index)
        elif isinstance(error, PacelineError):
            self._refused(error)
        else:
            self._refused(PacelineError("the session store failed unexpectedly"))
            context = {"message": "session store", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def pause(self) -> asyncio.Future[object]:
        """Release the session for now; done when that is stored, after every commit."""

        def paused(done: asyncio.Future[object]) -> None:
            _look(done)
            self.let_go()

        stored: Awaitable[object] = self._store.pause(self._key, self._term)
        self._refused = _ignore
        future = asyncio.ensure_future(stored)
        future.add_done_callback(paused)
        return future

    def give_up(self, why: GivenUp) -> None:
        """End a session that can never go on; later readers get the reason."""
        length = len(self._committed)
        ended: Awaitable[object] = self._store.finish(
            self._key, self._term, length, FinishReason.ABORT, why
        )
        asyncio.ensure_future(ended).add_done_callback(_look)
        self.let_go()

    def let_go(self) -> None:
        """The session is over here; may be repeated. Nothing leads back to its driver then."""
        self._refused = self._on_persisted = _ignore
        self._store.release(self._key, self._term)


def _ignore(_answer: object) -> None:
    """Ignore an answer."""


def _look(done: asyncio.Future[object]) -> None:
    """Let a write run whose result shows in a later write."""
    if not done.cancelled():
        done.exception()
