"""What every front door does with a call: read its metadata, write its stream."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from services.contract.errors import StreamStalled
from services.runtime.serving import send_headers

READ_PATIENCE = 60.0


class Reader:
    """The stream to whoever called, written no faster than it is read."""

    def __init__(self, context: Any, patience: float, limit: asyncio.Timeout) -> None:
        """`limit` ends whoever writes, once a message has waited for `patience` seconds."""
        self._context, self._patience, self._limit = context, patience, limit
        self._loop = asyncio.get_running_loop()
        self._began, self._waits_since = False, math.inf
        # One timer for a stream: another one for each message would take 3 µs.
        self._timer = self._loop.call_later(patience, self._look)

    async def hears(self, message: Any) -> bool:
        """Write one message; False when the client is gone."""
        try:
            if not self._began:
                await send_headers(self._context)
                self._began = True
            self._waits_since = self._loop.time()
            await self._context.write(message)
        except grpc.aio.BaseError:
            # Nobody is left to be told of it.
            return False
        finally:
            self._waits_since = math.inf
        return True

    def _look(self) -> None:
        """End the stream if its message has waited too long, else look again when it will have."""
        now = self._loop.time()
        left = self._waits_since + self._patience - now
        if left > 0:
            self._timer = self._loop.call_later(min(left, self._patience), self._look)
        else:
            self._limit.reschedule(now)

    def leave(self) -> None:
        """Nothing more is written."""
        self._timer.cancel()


@asynccontextmanager
async def reading(context: Any, patience: float, advice: str = "") -> AsyncIterator[Reader]:
    """The reader of a stream, for as long as there is something to write.

    `patience`: seconds that one message may wait; `advice`: to whom it was too long. Raises
    StreamStalled then.
    """
    try:
        async with asyncio.timeout(None) as limit:
            reader = Reader(context, patience, limit)
            try:
                yield reader
            finally:
                reader.leave()
    except TimeoutError:
        if not limit.expired():
            raise
        raise StreamStalled(f"nothing was read for {patience:g} s{advice}") from None


def traceparent(context: Any) -> str:
    """The caller's W3C trace context; empty when it tells none."""
    return metadata(context, "traceparent")


def metadata(context: Any, name: str) -> str:
    """The first value of that name among what the caller sent beside its request."""
    sent = context.invocation_metadata() or ()
    return next((str(value) for key, value in sent if key == name), "")
