"""Who is there: entries in Redis that their owners keep alive, in groups.

An owner writes its whole entry with every heartbeat, so a group heals by itself when Redis
loses it. Entries expire by the clock of Redis.

Who reads often asks what has changed: a counter grows with every entry that comes or goes, so the
answer is short while none does. Owners of an older version do not count themselves; the number
of entries, and a whole list now and then, show those.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Self

from services.contract.errors import StoreError
from services.runtime.redis_client import (
    DEFAULT_PREFIX,
    FAULTS,
    Client,
    RunScript,
    open_client,
    start_error,
)
from services.runtime.tasks import end

log = logging.getLogger(__name__)

MOST_QUIET = 20
"""Answers without a list before the next is a whole one."""
_INSTANCE_CHARS = 16

# KEYS: a hash of entries (instance, then JSON), a sorted set of their expiry times, and a counter
# of those that came or went.
_CHANGED = """
local function changed(changes)
  if redis.call('HLEN', KEYS[1]) == 0 then
    redis.call('DEL', changes)
  elseif redis.call('INCR', changes) == 1 then
    -- Never a number that was there before.
    local time = redis.call('TIME')
    redis.call('SET', changes, string.format('%.0f', time[1] * 1000000 + time[2]))
  end
end
"""

_PRELUDE = (
    _CHANGED
    + """
local entries, expiries, changes = KEYS[1], KEYS[2], KEYS[3]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local dead = redis.call('ZRANGEBYSCORE', expiries, '-inf', string.format('%.0f', now))
for _, worker in ipairs(dead) do
  redis.call('HDEL', entries, worker)
  redis.call('ZREM', expiries, worker)
end
if #dead > 0 then changed(changes) end
"""
)

# ARGV: worker, instance and JSON, ttl_ms, characters of an instance
_HEARTBEAT = (
    _PRELUDE
    + """
local known = redis.call('HGET', entries, ARGV[1])
redis.call('HSET', entries, ARGV[1], ARGV[2])
if not known or string.sub(known, 1, ARGV[4]) ~= string.sub(ARGV[2], 1, ARGV[4]) then
  changed(changes)
end
redis.call('ZADD', expiries, string.format('%.0f', now + ARGV[3]), ARGV[1])
local latest = redis.call('ZRANGE', expiries, -1, -1, 'WITHSCORES')
local longest = string.format('%.0f', tonumber(latest[2]) - now)
redis.call('PEXPIRE', entries, longest)
redis.call('PEXPIRE', expiries, longest)
redis.call('PEXPIRE', changes, longest)
return 1
"""
)

# ARGV: worker, instance. A newer process of the same name keeps its entry.
_REMOVE = (
    _CHANGED
    + """
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if not entry or string.sub(entry, 1, #ARGV[2]) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
changed(KEYS[3])
return 1
"""
)

_LIST = _PRELUDE + "return redis.call('HVALS', entries)"

# ARGV: what the last answer began with; '' = none. Only that, while it is still true.
_NEWS = (
    _PRELUDE
    + """
local state = (redis.call('GET', changes) or '0') .. '/' .. redis.call('HLEN', entries)
if state == ARGV[1] then return {state} end
return {state, redis.call('HVALS', entries)}
"""
)


class Presence:
    """Keeps one entry alive from `start` to `stop`.

    It outlives its last heartbeat by `ttl_s` at most.
    """

    def __init__(
        self,
        redis_url: str,
        group: str,
        name: str,
        say: Callable[[], str],
        *,
        heartbeat_s: float = 1.0,
        ttl_s: float = 4.0,
        prefix: str = DEFAULT_PREFIX,
        client: Client | None = None,
    ) -> None:
        """`say` is asked for the entry's text at every heartbeat, on the event loop."""
        self._url = redis_url
        self._name, self._say = name, say
        self._heartbeat_s = heartbeat_s
        self._ttl_ms = round(ttl_s * 1000)
        self._keys = keys_of(prefix, group)
        self._instance = secrets.token_hex(_INSTANCE_CHARS // 2)
        self._client = client or open_client(redis_url, connections=2)
        self._beat = RunScript(self._client, _HEARTBEAT)
        self._remove = RunScript(self._client, _REMOVE)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Register; later heartbeats go on by themselves. Raises StartError."""
        try:
            await self._send()
        except FAULTS as error:
            await self._client.aclose()
            raise start_error(self._url, error) from error
        self._task = asyncio.create_task(self._keep(), name="registration")

    async def stop(self) -> None:
        """Take the entry away at once, if Redis answers; may be repeated."""
        if self._task is None:
            return
        await end(self._task)
        self._task = None
        with suppress(*FAULTS):
            await self._remove(keys=self._keys, args=[self._name, self._instance])
        await self._client.aclose()

    async def _keep(self) -> None:
        failing = False
        while True:
            await asyncio.sleep(self._heartbeat_s)
            try:
                await self._send()
            except Exception as error:
                if not failing:
                    log.warning("registry: heartbeat failed: %s", type(error).__name__)
                failing = True
            else:
                failing = False

    async def _send(self) -> None:
        entry = self._instance + self._say()
        args: list[str | int] = [self._name, entry, self._ttl_ms, _INSTANCE_CHARS]
        await self._beat(keys=self._keys, args=args)


class Roster:
    """Reads the entries of a group, as texts."""

    def __init__(
        self,
        redis_url: str,
        group: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        client: Client | None = None,
    ) -> None:
        self._keys = keys_of(prefix, group)
        self._client = client or open_client(redis_url, connections=2)
        self._list = RunScript(self._client, _LIST)
        self._news = RunScript(self._client, _NEWS)
        self._state: bytes | str = b""
        self._quiet = 0

    async def texts(self) -> list[bytes]:
        """All that are alive. Raises StoreError."""
        return _texts(await self._ask(self._list))

    async def changed(self) -> list[bytes] | None:
        """All that are alive, if any came or went since the last call; else None.

        Texts that change are not told. Raises StoreError.
        """
        self._quiet += 1
        if self._quiet > MOST_QUIET:
            self._state = b""
        state, *listed = await self._ask(self._news, (self._state,))
        if not listed:
            return None
        self._state, self._quiet = state, 0
        return _texts(listed[0])

    async def close(self) -> None:
        """Close the connection."""
        await self._client.aclose()

    async def _ask(self, script: RunScript, args: Sequence[bytes | str] = ()) -> Any:
        try:
            return await script(keys=self._keys, args=args)
        except FAULTS as error:
            # After a loss the counter may come to the same number again.
            self._state = b""
            raise StoreError(f"the worker registry: {type(error).__name__}") from error


def keys_of(prefix: str, group: str) -> list[str]:
    """The keys of a group's entries; one hash tag, so one slot."""
    return [f"{prefix}{{{group}}}:{name}" for name in ("entries", "expiries", "changes")]


def _texts(entries: Sequence[bytes]) -> list[bytes]:
    return [entry[_INSTANCE_CHARS:] for entry in entries]
