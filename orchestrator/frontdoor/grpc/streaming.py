"""What every front door does with a call: read its metadata, write its stream."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from services.contract.errors import StreamStalled
from services.runtime.serving import send_headers

READ_PATIENCE = 60.0


class Reader:
    """The stream to whoever called, written no faster than it is read."""

    def __init__(self, context: Any, patience: float, advice: str = "") -> None:
        """`patience`: seconds that one message may wait; `advice`: to whom it was too long."""
        self._context, self._patience, self._advice = context, patience, advice
        self._began = False

    async def hears(self, message: Any) -> bool:
        """Write one message; False when the client is gone.

        Raises StreamStalled where it is not read in time.
        """
        try:
            if not self._began:
                await send_headers(self._context)
                self._began = True
            async with asyncio.timeout(self._patience):
                await self._context.write(message)
        except TimeoutError:
            what = f"nothing was read for {self._patience:g} s{self._advice}"
            raise StreamStalled(what) from None
        except grpc.aio.BaseError:
            # Nobody is left to be told of it.
            return False
        return True


def traceparent(context: Any) -> str:
    """The caller's W3C trace context; empty when it tells none."""
    return metadata(context, "traceparent")


def metadata(context: Any, name: str) -> str:
    """The first value of that name among what the caller sent beside its request."""
    sent = context.invocation_metadata() or ()
    return next((str(value) for key, value in sent if key == name), "")
