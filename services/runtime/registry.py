"""The worker registry in Redis: who serves which role, where, and how busy it is.

A worker writes its whole entry with every heartbeat, so the registry heals by
itself when Redis loses it. Entries expire by the clock of Redis.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from services.contract.errors import StoreError
from services.contract.record_types import checked
from services.contract.types import Progress, Role, WorkerDescription
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

_ENTRY_VERSION = 1
_INSTANCE_CHARS = 16
_ADDRESS = re.compile(r"[\w.\-]{1,255}:\d{1,5}|\[[0-9A-Fa-f:.%\w]{2,64}\]:\d{1,5}", re.ASCII)

# KEYS: a hash of entries (instance, then JSON) and a sorted set of their expiry times.
_PRELUDE = """
local entries, expiries = KEYS[1], KEYS[2]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local dead = redis.call('ZRANGEBYSCORE', expiries, '-inf', string.format('%.0f', now))
for _, worker in ipairs(dead) do
  redis.call('HDEL', entries, worker)
  redis.call('ZREM', expiries, worker)
end
"""

# ARGV: worker, instance and JSON, ttl_ms
_HEARTBEAT = (
    _PRELUDE
    + """
redis.call('HSET', entries, ARGV[1], ARGV[2])
redis.call('ZADD', expiries, string.format('%.0f', now + ARGV[3]), ARGV[1])
local latest = redis.call('ZRANGE', expiries, -1, -1, 'WITHSCORES')
local longest = string.format('%.0f', tonumber(latest[2]) - now)
redis.call('PEXPIRE', entries, longest)
redis.call('PEXPIRE', expiries, longest)
return 1
"""
)

# ARGV: worker, instance. A newer process of the same name keeps its entry.
_REMOVE = """
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if not entry or string.sub(entry, 1, #ARGV[2]) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
"""

_LIST = _PRELUDE + "return redis.call('HVALS', entries)"


@dataclass(frozen=True, slots=True)
class RegisteredWorker:
    """A worker that sent a heartbeat lately; `address` is HOST:PORT."""

    description: WorkerDescription
    address: str
    load: Progress = field(default_factory=Progress)


class Registration:
    """Keeps one worker's entry alive from `start` to `stop`.

    `load` is asked at every heartbeat, on the event loop: it must be cheap.
    An entry outlives its last heartbeat by `ttl_s` at most. Use one object for
    each role of a process.
    """

    def __init__(
        self,
        redis_url: str,
        description: WorkerDescription,
        address: str,
        load: Callable[[], Progress] = Progress,
        *,
        heartbeat_s: float = 1.0,
        ttl_s: float = 4.0,
        prefix: str = DEFAULT_PREFIX,
        client: Client | None = None,
    ) -> None:
        self._url = redis_url
        self._worker = RegisteredWorker(description, address)
        self._load = load
        self._heartbeat_s = heartbeat_s
        self._ttl_ms = round(ttl_s * 1000)
        self._keys = _keys(prefix)
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

    @property
    def _name(self) -> str:
        return f"{self._worker.description.role.value}/{self._worker.description.worker_id}"

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
        entry = self._instance + _encode(replace(self._worker, load=self._load()))
        await self._beat(keys=self._keys, args=[self._name, entry, self._ttl_ms])


class WorkerRegistry:
    """Reads the registry."""

    def __init__(
        self, redis_url: str, *, prefix: str = DEFAULT_PREFIX, client: Client | None = None
    ) -> None:
        self._keys = _keys(prefix)
        self._client = client or open_client(redis_url, connections=2)
        self._list = RunScript(self._client, _LIST)

    async def list(self, role: Role | None = None) -> list[RegisteredWorker]:
        """The workers that are alive, by name; of one role, if given. Raises StoreError."""
        try:
            entries = await self._list(keys=self._keys)
        except FAULTS as error:
            raise StoreError(f"the worker registry: {type(error).__name__}") from error
        workers = [worker for entry in entries if (worker := _decode(entry))]
        return sorted(
            (worker for worker in workers if role in (None, worker.description.role)),
            key=lambda worker: (worker.description.role.value, worker.description.worker_id),
        )

    async def close(self) -> None:
        """Close the connection."""
        await self._client.aclose()


def _keys(prefix: str) -> list[str]:
    return [f"{prefix}{{workers}}:entries", f"{prefix}{{workers}}:expiries"]


def _encode(worker: RegisteredWorker) -> str:
    description = asdict(worker.description) | {"role": worker.description.role.value}
    entry = {
        "version": _ENTRY_VERSION,
        "address": worker.address,
        "description": description,
        "load": asdict(worker.load),
    }
    return json.dumps(entry, separators=(",", ":"))


def _decode(entry: bytes) -> RegisteredWorker | None:
    """The worker of an entry; None when another version wrote what we cannot read."""
    try:
        known: dict[str, Any] = json.loads(entry[_INSTANCE_CHARS:])
        description = _known_fields(WorkerDescription, known["description"])
        description["role"] = Role(description["role"])
        for name in ("methods", "capabilities", "state_layers"):
            description[name] = tuple(description.get(name, ()))
        load = checked(Progress, _known_fields(Progress, known.get("load", {})))
        return RegisteredWorker(
            checked(WorkerDescription, description), _address(known["address"]), load
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        log.warning("registry: an entry cannot be read")
        return None


def _address(value: object) -> str:
    """HOST:PORT; ValueError for anything else."""
    if not isinstance(value, str) or not _ADDRESS.fullmatch(value):
        raise ValueError("no address")
    return value


def _known_fields(record: type, values: dict[str, Any]) -> dict[str, Any]:
    """The values that the record has fields for: a newer worker may send more."""
    names = {known.name for known in fields(record)}
    return {name: value for name, value in values.items() if name in names}
