"""What sessions said, kept in Redis so that a drafter that starts has texts to begin with.

One list for each scope: the outputs of its sessions, oldest first, token ids alone, no
prompts. Drafters of a cluster share it. It holds at most `most_texts` outputs of
at most `most_tokens` tokens each, and goes `ttl_s` seconds after the last was added.

Off the critical path: a thread of its own speaks to Redis, and nobody waits for it.
What cannot be stored or fetched is lost, which costs speed alone.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import struct
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from services.runtime.redis_client import DEFAULT_PREFIX, FAULTS, Client, open_client
from services.runtime.redis_url import shown

log = logging.getLogger(__name__)

MOST_WAITING = 256
"""Jobs that may wait for Redis; what comes beyond is dropped."""
MOST_ARRIVED = 4096
"""Texts that may wait for the drafter; what comes beyond takes the place of the oldest."""
_FLUSH_S = 2.0

Job = Callable[[Client], Awaitable[None]]


class RedisArchive:
    """The outputs of all scopes. `load`, `keep` and `arrived` are called from one thread."""

    def __init__(
        self,
        url: str,
        *,
        ttl_s: float = 86_400.0,
        most_texts: int = 128,
        most_tokens: int = 512,
        prefix: str = DEFAULT_PREFIX,
        client: Callable[[], Client] | None = None,
    ) -> None:
        """Connects at first use. Raises StartError for a URL that says nothing."""
        self._url = url
        self._ttl_ms = round(ttl_s * 1000)
        self._most_texts, self._most_tokens = most_texts, most_tokens
        self._prefix = prefix
        self._redis = client() if client is not None else open_client(url, connections=1)
        self._arrived: deque[tuple[str, tuple[int, ...]]] = deque(maxlen=MOST_ARRIVED)
        self._jobs: asyncio.Queue[Job | None] = asyncio.Queue(MOST_WAITING)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="phrase-archive", daemon=True)
        self._away = False
        self._thread.start()
        atexit.register(self.close)

    def load(self, scope: str) -> None:
        """Ask for what a scope has; it arrives later."""
        self._post(lambda redis: self._load(redis, scope))

    def keep(self, scope: str, output: Sequence[int]) -> None:
        """Add the output of a session that ended."""
        if len(output) > 1:
            text = _encode(output[-self._most_tokens :])
            self._post(lambda redis: self._keep(redis, scope, text))

    def arrived(self) -> tuple[str, Sequence[int]] | None:
        """The next scope and output that was asked for, if one is here."""
        return self._arrived.popleft() if self._arrived else None

    def close(self) -> None:
        """Store what waits, as far as that takes no longer than two seconds."""
        atexit.unregister(self.close)
        if self._thread.is_alive():
            self._post(None)
            self._thread.join(_FLUSH_S)

    def _key(self, scope: str) -> str:
        return f"{self._prefix}phrases:{scope}"

    def _post(self, job: Job | None) -> None:
        # The loop is closed once the thread has ended; then nothing is kept any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._offer, job)

    # --- in the thread --------------------------------------------------------

    def _offer(self, job: Job | None) -> None:
        with suppress(asyncio.QueueFull):
            self._jobs.put_nowait(job)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        while (job := await self._jobs.get()) is not None:
            await self._try(job)
        with suppress(*FAULTS):
            await self._redis.aclose()

    async def _try(self, job: Job) -> None:
        try:
            await job(self._redis)
            self._away = False
        except FAULTS as error:
            if not self._away:
                why = type(error).__name__
                log.warning("phrases are not kept: Redis at %s: %s", shown(self._url), why)
            self._away = True

    async def _load(self, redis: Client, scope: str) -> None:
        texts = await redis.lrange(self._key(scope), -self._most_texts, -1)
        outputs = (_decode(record, self._most_tokens) for record in texts)
        self._arrived += [(scope, output) for output in outputs if output]

    async def _keep(self, redis: Client, scope: str, text: bytes) -> None:
        key = self._key(scope)
        async with redis.pipeline(transaction=True) as pipe:
            pipe.rpush(key, text)
            pipe.ltrim(key, -self._most_texts, -1)
            pipe.pexpire(key, self._ttl_ms)
            await pipe.execute()


def _encode(tokens: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


def _decode(record: bytes | str, most: int) -> tuple[int, ...]:
    """The tokens; none for a record that is no row of at most so many 32-bit numbers."""
    if isinstance(record, str) or len(record) % 4 or len(record) > 4 * most:
        return ()
    return struct.unpack(f"<{len(record) // 4}I", record)
