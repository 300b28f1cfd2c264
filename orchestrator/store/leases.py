"""The sessions that this orchestrator works on, as its store keeps an eye on them.

1. A session that wrote nothing for a third of its lease is renewed: an owner that has
   nothing to write hears in time that the session is another's, or was aborted.
2. A store that lost acknowledged writes is given the session from its owner's memory,
   but only once the server itself has shown the loss since this session's last
   acknowledged write. Absence alone may be an end that was forgotten since.
3. So is one that has the session's record without all of its text: the record shows the
   loss. A server that evicts keys takes them one by one.
4. Every such loss is used up by one attempt, so that nothing is repeated for ever.
5. An owner that stood still may have been fenced meanwhile. Where nobody waits for writes, they
   count as written only once the store says whose the session is, or stays away for a lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from orchestrator.session.ports import Holder, SessionKey
from orchestrator.store import codec
from orchestrator.store.calls import nothing, prepare, send
from orchestrator.store.command import Arg, Call, Reply, no_mending
from orchestrator.store.lanes import Sender
from orchestrator.store.options import StoreOptions
from services.contract.errors import DataLoss, Fenced, PacelineError, SessionAborted
from services.runtime.tasks import end

T = TypeVar("T")
# Renewals, and looks at what is due, in the time of one lease.
LOOKS_PER_LEASE = 3


@dataclass(slots=True, eq=False)
class Lease:
    """One session and who works on it; `holder` is None after its release.

    `losses` is what the server had shown by the last acknowledged write, `mended` whether a
    text was given back to its record since then, `wrote` whether one was acknowledged since
    the last look. From `waiting` on it is for writes that nobody
    waits for: how many are under way, whether the store misses some, until when not to try
    again, and whether it is given up. `doubt` is there while the store is asked whose it is.
    """

    key: SessionKey
    keys: tuple[str, str, str]
    term: int
    owner: str
    holder: Holder | None
    losses: int
    mend: Callable[[bool], Call | None] = no_mending
    mended: bool = False
    wrote: bool = True
    renewing: bool = False
    waiting: int = 0
    behind: bool = False
    retry_at: float = 0.0
    gone: bool = False
    doubt: asyncio.Future[bool] | None = None

    def written(self, value: T) -> asyncio.Future[T]:
        """The answer to a write that nobody waits for; cancelled if the session is another's."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self.doubt is None:
            answer.set_result(value)
        else:
            self.doubt.add_done_callback(
                lambda ours: answer.set_result(value) if ours.result() else answer.cancel()
            )
        return answer

    def refuse(self, error: BaseException | None) -> None:
        """Tell the holder, if the error means that the session is not its own any more."""
        final = isinstance(error, Fenced | SessionAborted | DataLoss)
        if final and self.holder is not None:
            assert isinstance(error, PacelineError)
            self.holder.on_refused(error)


class Leases:
    """Everything that is held. All methods belong to the event loop."""

    def __init__(self, writer: Sender, options: StoreOptions) -> None:
        self._writer, self._options = writer, options
        self._held: dict[SessionKey, Lease] = {}
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._held)

    def start(self, on_due: Callable[[Lease], None]) -> None:
        """Begin to look for sessions that wrote nothing for a while; hand each to `on_due`."""
        self._task = asyncio.create_task(self._look(on_due), name="session leases")

    async def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            await end(self._task)
        self._held.clear()

    def hold(self, key: SessionKey, term: int, holder: Holder) -> None:
        """See `SessionStore.hold`."""
        owner = holder.memory().session.owner
        keys = codec.keys_of(self._options.prefix, key)
        held = Lease(key, keys, term, owner, holder, self._writer.servers.losses)
        held.mend = partial(self._mend, held)
        self._held[key] = held

    def release(self, key: SessionKey, term: int) -> None:
        """See `SessionStore.release`."""
        if held := self.get(key, term):
            held.holder = None
            del self._held[key]

    def get(self, key: SessionKey, term: int) -> Lease | None:
        """The session, if it is held in this term."""
        held = self._held.get(key)
        return held if held is not None and held.term == term else None

    def call(
        self, held: Lease, name: str, args: Iterable[Arg], decode: Callable[[Reply], T]
    ) -> asyncio.Future[T]:
        """Queue a script call of a held session; a store that lost the session gets it back."""
        call = prepare(
            self._writer,
            name,
            held.key,
            held.keys,
            args,
            partial(self._acknowledged, held, decode),
            held.mend,
        )
        return send(self._writer, call)

    def _acknowledged(self, held: Lease, decode: Callable[[Reply], T], reply: Reply) -> T:
        self._seeded(held, reply)
        held.mended = False
        return decode(reply)

    def _seeded(self, held: Lease, _: Reply) -> None:
        held.losses = self._writer.servers.losses
        held.wrote = True

    def _mend(self, held: Lease, torn: bool) -> Call | None:
        used_up = held.mended if torn else held.losses >= self._writer.servers.losses
        if used_up or held.holder is None:
            return None
        held.losses = self._writer.servers.losses
        held.mended |= torn
        call = self._seed(held, held.holder, lost=not torn)
        call.answer.add_done_callback(partial(_told, held))
        return call

    def catch_up(self, held: Lease) -> asyncio.Future[None] | None:
        """Queue all that the holder remembers, for a store that did not take every write."""
        if held.holder is None:
            return None
        return send(self._writer, self._seed(held, held.holder, lost=False))

    def _seed(self, held: Lease, holder: Holder, *, lost: bool) -> Call:
        memory, options = holder.memory(), self._options
        session = memory.session
        args = [
            *(held.term, held.owner, session.digest, memory.round, memory.round_base),
            *(codec.pack(memory.committed), int(lost), "ttl_ms", options.ttl_ms),
            *codec.encode_session(session, options.lease_ms, relaxed=options.relaxed),
        ]
        answer = partial(self._seeded, held)
        return prepare(self._writer, "seed", held.key, held.keys, args, answer, held.mend)

    def renew(self, held: Lease, then: Callable[[Lease, BaseException | None], None]) -> None:
        """Ask the store whether all is still there, and still ours; one such call at a time."""
        if held.renewing or held.holder is None:
            return
        held.renewing = True

        def settle(done: asyncio.Future[None]) -> None:
            held.renewing = False
            then(held, None if done.cancelled() else done.exception())

        length = len(held.holder.memory().committed)
        self.call(held, "renew", (held.term, length, held.owner), nothing).add_done_callback(settle)

    def doubt(self, then: Callable[[Lease, BaseException | None], None]) -> None:
        """Ask the store whose each session is; what it says of one goes to `then`."""
        for held in self._held.values():
            if held.doubt is None and not held.behind and held.holder is not None:
                held.doubt = asyncio.get_running_loop().create_future()
                length = len(held.holder.memory().committed)
                asked = self.call(held, "renew", (held.term, length, held.owner), nothing)
                asked.add_done_callback(partial(_assure, held, then))
                asyncio.get_running_loop().call_later(
                    self._options.lease_ms / 1e3, _assure, held, then
                )

    def ask_all(self, ask: Callable[[Lease], None]) -> None:
        """Ask of each session, and not only of those that wrote nothing."""
        for held in list(self._held.values()):
            ask(held)

    async def _look(self, on_due: Callable[[Lease], None]) -> None:
        every = self._options.lease_ms / 1e3 / LOOKS_PER_LEASE
        while True:
            await asyncio.sleep(every)
            for held in list(self._held.values()):
                if not held.wrote:
                    on_due(held)
                held.wrote = False


def _assure(
    held: Lease,
    then: Callable[[Lease, BaseException | None], None],
    done: asyncio.Future[None] | None = None,
) -> None:
    """The store has said whose the session is, or has been away for too long to wait."""
    error = None if done is None or done.cancelled() else done.exception()
    if done is not None:
        then(held, error)
    if held.doubt is not None:
        held.doubt.set_result(not isinstance(error, Fenced | SessionAborted))
        held.doubt = None


def _told(held: Lease, done: asyncio.Future[None]) -> None:
    """A refused seed; what the store lacks then is told by the call it was made for."""
    error = None if done.cancelled() else done.exception()
    if not isinstance(error, DataLoss):
        held.refuse(error)
