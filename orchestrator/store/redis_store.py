"""The session store on Redis or Valkey."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

from redis import exceptions

from orchestrator.session.ports import (
    Call,
    Created,
    Holder,
    NewSession,
    Outline,
    SessionKey,
    StoredRound,
    StoredSession,
)
from orchestrator.steering.rounds import Ending, Matched
from orchestrator.store import codec
from orchestrator.store.background import Background
from orchestrator.store.calls import nothing, prepare, send
from orchestrator.store.command import Arg, Reply
from orchestrator.store.delivery import DeliveryOptions, servers
from orchestrator.store.eviction import warn_of_eviction
from orchestrator.store.lanes import sender
from orchestrator.store.leases import Lease, Leases
from orchestrator.store.options import StoreOptions
from orchestrator.store.reads import Reads
from orchestrator.store.writer import WriterOptions
from services.contract.errors import StartError
from services.contract.types import FinishReason, SessionStatus
from services.runtime.redis_client import FAULTS, Client, PartOfCluster, open_client, start_error
from services.runtime.redis_cluster import RedisCluster

T = TypeVar("T")


class RedisSessionStore:
    """A `SessionStore` over one Redis client, which it closes.

    With durability `required` nothing is acknowledged before the server has it; while
    the server is away calls wait, at most the writer's patience. With `relaxed` the
    commits and the finish of a session that is held never wait.
    """

    def __init__(
        self,
        client: Client,
        options: StoreOptions | None = None,
        writer_options: WriterOptions | None = None,
        on_dropped: Callable[[], None] = lambda: None,
        on_fenced: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_dropped`: a `relaxed` store did not take a commit in time.

        `on_fenced`: a write was refused, because the session has another owner.
        """
        self._client = client
        self._options = options or StoreOptions()
        writing = writer_options or WriterOptions()
        self._servers = servers(client, DeliveryOptions(writing.max_bytes, writing.replicas))
        self._writer = sender(self._servers, writing, on_fenced)
        self._reads = Reads(client, writing, self._options, self._writer.under_way)
        self._leases = Leases(self._writer, self._options)
        self._background = Background(self._leases, on_dropped)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Check that the server takes every kind of write, and load the scripts.

        Raises what redis-py raises; `connect` makes one line of it.
        """
        await self._servers.load_scripts()
        await self._probe(min)
        self._writer.start()
        self._reads.start()
        self._leases.start(self._renew)

    async def answers(self) -> bool:
        """Whether the server takes every kind of write now; waits a few seconds at most.

        Of a cluster: whether any of its nodes does. Sessions on the others wait for theirs.
        """
        try:
            await self._probe(max)
        except exceptions.NoScriptError:
            # It began anew; once taught it is asked again.
            with suppress(*FAULTS):
                await self._servers.load_scripts()
            return False
        except FAULTS:
            return False
        return True

    async def _probe(self, which: Callable[[Iterable[bool]], bool]) -> None:
        """Ask each server, and raise unless all (`min`) or any (`max`) take writes."""
        tag = f"{{{codec.tag_of(SessionKey('', '%s'))}}}"
        asked = (self._probe_one(name) for name in self._servers.probes(tag))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        faults = [answer for answer in answers if isinstance(answer, BaseException)]
        if not answers:
            raise exceptions.ConnectionError("no node serves any slot")
        if faults and not which(not isinstance(one, BaseException) for one in answers):
            raise faults[0]

    async def _probe_one(self, name: str) -> None:
        key = SessionKey("", name)
        keys = codec.keys_of(self._options.prefix, key)
        reply = await self._servers.probe(prepare(self._writer, "probe", key, keys, (), nothing))
        if isinstance(reply, Exception):
            raise reply

    async def close(self, timeout: float = 5.0) -> None:
        """Send what is queued, for at most `timeout` seconds, and close the client."""
        await self._leases.close()
        await asyncio.gather(self._writer.close(timeout), self._reads.close(timeout))
        await self._client.aclose()

    def create(
        self, key: SessionKey, session: NewSession, call: Call | None = None
    ) -> Awaitable[Created]:
        """See `SessionStore.create`."""
        options = self._options
        fields = codec.encode_session(session, options.lease_ms, relaxed=options.relaxed)
        if call is not None:
            fields += ["reader_calls", f"{call.reader}/{call.number}"]
        args = [session.digest, secrets.token_hex(8), options.ttl_ms, *fields]
        return self._call("create", key, args, codec.decode_created)

    def acquire(
        self, key: SessionKey, owner: str, call: Call | None = None
    ) -> Awaitable[StoredSession]:
        """See `SessionStore.acquire`."""
        nonce, relaxed = secrets.token_hex(8), int(self._options.relaxed)
        reader = (call.reader, call.number) if call is not None else ("", 0)
        args = (owner, self._options.lease_ms, nonce, codec.RECORD_VERSION, relaxed, *reader)
        taken = self._call("acquire", key, args, codec.decode_taken)
        return asyncio.ensure_future(self._reads.taken(key, taken, owner))

    def attend(self, key: SessionKey, term: int, call: Call) -> Awaitable[int]:
        """See `SessionStore.attend`."""
        return self._call("attend", key, (term, call.reader, call.number), _number)

    def hold(self, key: SessionKey, term: int, holder: Holder) -> None:
        """See `SessionStore.hold`."""
        self._leases.hold(key, term, holder)

    def release(self, key: SessionKey, term: int) -> None:
        """See `SessionStore.release`."""
        self._leases.release(key, term)

    def stood_still(self) -> None:
        """See `SessionStore.stood_still`."""
        if self._options.relaxed:
            self._leases.doubt(self._background.renewed)
        else:
            self._leases.ask_all(self._renew)

    @property
    def held(self) -> int:
        """Sessions that somebody here works on."""
        return len(self._leases)

    @property
    def away_s(self) -> float:
        """For how long the server has not taken what waits for it, in seconds; 0 = nothing waits.

        Safe in any thread.
        """
        return max(self._writer.away_s, self._reads.away_s)

    def commit(
        self,
        key: SessionKey,
        term: int,
        round: int,
        base_len: int,
        token_ids: Sequence[int],
        record: bytes = b"",
        verifier: str = "",
        end: Ending | None = None,
        rounds: int = 1,
    ) -> Awaitable[int]:
        """See `SessionStore.commit`."""
        held, options = self._leases.get(key, term), self._options
        packed, owner = codec.pack(token_ids), held.owner if held else ""
        args: tuple[Arg, ...] = (term, round, base_len, packed, record)
        kept = max(1, options.rounds_kept // rounds)
        args += (kept, owner, verifier, *self._encoded_end(end))
        if held is None or not options.relaxed:
            return self._call("commit", key, args, _number, held)
        write = self._background.write if end is None else self._background.end
        write(held, lambda: self._call("commit", key, args, _number, held))
        return held.written(base_len + len(token_ids))

    def _encoded_end(self, end: Ending | None) -> tuple[Arg, ...]:
        if end is None:
            return ("", "", 0)
        stop = codec.encode_stop(end.matched)
        return (end.reason.name.lower(), stop, self._options.finished_ttl_ms)

    def finish(
        self,
        key: SessionKey,
        term: int,
        committed_len: int,
        reason: FinishReason,
        matched_stop: Matched = None,
    ) -> Awaitable[None]:
        """See `SessionStore.finish`."""
        held, end = self._leases.get(key, term), Ending(reason, matched_stop)
        args = (term, committed_len, *self._encoded_end(end), held.owner if held else "")
        if held is None or not self._options.relaxed:
            return self._call("finish", key, args, nothing, held)
        self._background.end(held, lambda: self._call("finish", key, args, nothing, held))
        return held.written(None)

    def pause(self, key: SessionKey, term: int) -> Awaitable[None]:
        """See `SessionStore.pause`."""
        held = self._leases.get(key, term)
        if held is not None:
            # Before anybody else goes on from here: is all there that was acknowledged?
            self._renew(held)
        return self._call("pause", key, (term, held.owner if held else ""), nothing, held)

    def abort(self, key: SessionKey) -> Awaitable[SessionStatus]:
        """See `SessionStore.abort`."""
        args = (self._options.finished_ttl_ms,)
        return self._call("abort", key, args, lambda reply: codec.decode_status(reply[1]))

    def look(self, key: SessionKey) -> Awaitable[Outline]:
        """See `SessionStore.look`."""
        return self._reads.look(key)

    def get(self, key: SessionKey) -> Awaitable[StoredSession]:
        """See `SessionStore.get`."""
        return asyncio.ensure_future(self._reads.get(key))

    def rounds(self, key: SessionKey) -> Awaitable[tuple[StoredRound, ...]]:
        """See `SessionStore.rounds`."""
        return asyncio.ensure_future(self._reads.rounds(key))

    def _call(
        self,
        name: str,
        key: SessionKey,
        args: Iterable[Arg],
        decode: Callable[[Reply], T],
        held: Lease | None = None,
    ) -> asyncio.Future[T]:
        if held is not None:
            return self._leases.call(held, name, args, decode)
        keys = codec.keys_of(self._options.prefix, key)
        call = prepare(self._writer, name, key, keys, args, decode)
        return send(self._writer, call)

    def _renew(self, held: Lease) -> None:
        if not self._options.relaxed:
            self._leases.renew(held, Lease.refuse)
        elif held.behind:
            self._background.catch_up(held)
        elif not held.gone:
            self._leases.renew(held, self._background.renewed)


async def connect(
    url: str,
    options: StoreOptions | None = None,
    writer_options: WriterOptions | None = None,
    on_dropped: Callable[[], None] = lambda: None,
    on_fenced: Callable[[], None] = lambda: None,
) -> RedisSessionStore:
    """A started store at a URL as `services.runtime.redis_url` reads them.

    Raises StartError, one line, when the server cannot be used.
    """
    client = open_client(url)
    store = RedisSessionStore(client, options, writer_options, on_dropped, on_fenced)
    try:
        await store.start()
    except FAULTS as error:
        await client.aclose()
        raise start_error(url, error) from error
    try:
        await _refuse_part_of_a_cluster(url, client)
    except StartError:
        await store.close()
        raise
    await warn_of_eviction(client)
    return store


async def _refuse_part_of_a_cluster(url: str, client: Client) -> None:
    """One node of several was named as if it were all. Raises StartError."""
    told: Any = {}
    if not isinstance(client, RedisCluster):
        with suppress(*FAULTS):
            told = await client.cluster("INFO")
    if int(told.get("cluster_size", 0)) > 1:
        raise start_error(url, PartOfCluster())


def _number(reply: Reply) -> int:
    return int(reply[1])
