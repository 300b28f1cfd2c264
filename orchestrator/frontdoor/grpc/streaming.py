"""What every front door does with a call: read its metadata, write its stream."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from services.contract.errors import StreamStalled

READ_PATIENCE = 60.0


async def told(context: Any, message: Any, patience: float, advice: str = "") -> bool:
    """Write one message, no faster than it is read; False when the client is gone.

    Raises StreamStalled, its words ended by `advice`, after `patience` seconds without a reader.
    """
    try:
        async with asyncio.timeout(patience):
            await context.write(message)
    except TimeoutError:
        raise StreamStalled(f"nothing was read for {patience:g} s{advice}") from None
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
