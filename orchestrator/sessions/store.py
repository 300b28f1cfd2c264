"""The session store on Redis or Valkey."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from redis import exceptions
from redis.asyncio import Redis

from orchestrator.ports import Created, NewSession, SessionKey, StoredRound, StoredSession
from orchestrator.sessions import codec
from orchestrator.sessions.scripts import script
from orchestrator.sessions.writer import Arg, Reply, Writer, WriterOptions, load_scripts
from services.common.errors import (
    AlreadyExists,
    DataLoss,
    Fenced,
    NotFound,
    PacelineError,
    SessionAborted,
    StoreError,
)
from services.common.redis_client import DEFAULT_PREFIX, open_client, start_error
from services.common.types import FinishReason, SessionStatus

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How long things are kept, in milliseconds, and how many rounds at least.

    `ttl_ms` counts from the last write of a session that goes on,
    `finished_ttl_ms` from its end.
    """

    prefix: str = DEFAULT_PREFIX
    ttl_ms: int = 3_600_000
    finished_ttl_ms: int = 600_000
    lease_ms: int = 5_000
    rounds_kept: int = 1_000


class RedisSessionStore:
    """A `SessionStore` over one Redis client, which it closes.

    Nothing is acknowledged before the server has it (durability `required`);
    while the server is away calls wait, at most the writer's patience.
    """

    def __init__(
        self,
        client: Redis,
        options: StoreOptions | None = None,
        writer_options: WriterOptions | None = None,
    ) -> None:
        self._client = client
        self._options = options or StoreOptions()
        self._writer = Writer(client, writer_options)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Check that the server takes every kind of write, and load the scripts.

        Raises what redis-py raises; `connect` makes one line of it.
        """
        await load_scripts(self._client)
        probe_keys = codec.keys_of(self._options.prefix, SessionKey("", secrets.token_hex(8)))
        probe = script("probe")
        await self._client.evalsha(probe.sha, len(probe_keys), *probe_keys)
        self._writer.start()

    async def close(self, timeout: float = 5.0) -> None:
        """Send what is queued, for at most `timeout` seconds, and close the client."""
        await self._writer.close(timeout)
        await self._client.aclose()

    def create(self, key: SessionKey, session: NewSession) -> Awaitable[Created]:
        """See `SessionStore.create`."""
        fields = codec.encode_session(session, self._options.lease_ms)
        args = [session.digest, secrets.token_hex(8), self._options.ttl_ms, *fields]
        return self._call("create", key, args, codec.decode_created)

    def acquire(self, key: SessionKey, owner: str) -> Awaitable[StoredSession]:
        """See `SessionStore.acquire`."""
        args = (owner, self._options.lease_ms, secrets.token_hex(8), codec.RECORD_VERSION)
        return self._call("acquire", key, args, codec.decode_session)

    def commit(
        self,
        key: SessionKey,
        term: int,
        round: int,
        base_len: int,
        token_ids: Sequence[int],
        record: bytes = b"",
    ) -> Awaitable[int]:
        """See `SessionStore.commit`."""
        args = (term, round, base_len, codec.pack(token_ids), record, self._options.rounds_kept)
        return self._call("commit", key, args, lambda reply: int(reply[1]))

    def finish(
        self,
        key: SessionKey,
        term: int,
        committed_len: int,
        reason: FinishReason,
        matched_stop: str | int | None = None,
    ) -> Awaitable[None]:
        """See `SessionStore.finish`."""
        stop = codec.encode_stop(matched_stop)
        args = (term, committed_len, reason.name.lower(), stop, self._options.finished_ttl_ms)
        return self._call("finish", key, args, _nothing)

    def pause(self, key: SessionKey, term: int) -> Awaitable[None]:
        """See `SessionStore.pause`."""
        return self._call("pause", key, (term,), _nothing)

    def abort(self, key: SessionKey) -> Awaitable[SessionStatus]:
        """See `SessionStore.abort`."""
        args = (self._options.finished_ttl_ms,)
        return self._call("abort", key, args, lambda reply: codec.decode_status(reply[1]))

    def get(self, key: SessionKey) -> Awaitable[StoredSession]:
        """See `SessionStore.get`."""
        return self._call("get", key, (), codec.decode_session)

    def rounds(self, key: SessionKey) -> Awaitable[tuple[StoredRound, ...]]:
        """See `SessionStore.rounds`."""
        return self._call("rounds", key, (), codec.decode_rounds)

    def _call(
        self, name: str, key: SessionKey, args: Iterable[Arg], decode: Callable[[Reply], T]
    ) -> Awaitable[T]:
        def answer(reply: Reply) -> T:
            if reply[0] != b"ok":
                raise _refusal(name, key, reply)
            return decode(reply)

        return self._writer.call(name, codec.keys_of(self._options.prefix, key), args, answer)


async def connect(
    url: str,
    options: StoreOptions | None = None,
    writer_options: WriterOptions | None = None,
) -> RedisSessionStore:
    """A started store at `redis://`, `rediss://` or `unix://`.

    Raises StartError, one line, when the server cannot be used.
    """
    client = open_client(url)
    store = RedisSessionStore(client, options, writer_options)
    try:
        await store.start()
    except (exceptions.RedisError, OSError) as error:
        await client.aclose()
        raise start_error(url, error) from error
    return store


def _nothing(_: Reply) -> None:
    """For replies that say nothing but ok."""


def _refusal(name: str, key: SessionKey, reply: Reply) -> PacelineError:
    """The one place where the scripts' codes become exceptions."""
    session = f"session {key.session_id!r}"
    code, detail = reply[0].decode(), reply[1].decode() if len(reply) > 1 else ""
    match code:
        case "missing" if name in ("acquire", "get", "abort"):
            return NotFound(f"{session} does not exist")
        case "missing":
            return DataLoss(f"{session} is not in the store any more")
        case "lost":
            return DataLoss(f"{session}: the store fell back to {detail}")
        case "fenced":
            return Fenced(f"{session} has another owner now, in term {detail}")
        case "aborted":
            return SessionAborted(f"{session} was aborted")
        case "conflict" if name == "create":
            return AlreadyExists(f"{session} exists with other content")
        case "newer":
            return StoreError(f"{session} was stored by a newer version ({detail})")
        case _:
            return StoreError(f"{session}: {code} {detail}".rstrip())
