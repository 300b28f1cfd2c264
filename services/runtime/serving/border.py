"""The one border where exceptions become gRPC statuses, by a table, and what lets a status leave.

Every status carries an ErrorInfo (reason = the exception's name, domain
"paceline"); a bad request names its field in a BadRequest, and a refusal that
will pass carries a RetryInfo.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from services.contract import errors

logger = logging.getLogger(__name__)

DOMAIN = "paceline"
STORE_RETRY_SECONDS = 1.0

_CODES: dict[type[errors.PacelineError], grpc.StatusCode] = {
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.OffsetOutOfRange: grpc.StatusCode.OUT_OF_RANGE,
    errors.CallerError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.BusyError: grpc.StatusCode.UNAVAILABLE,
    errors.Fenced: grpc.StatusCode.ABORTED,
    errors.DataLoss: grpc.StatusCode.DATA_LOSS,
    errors.SessionAborted: grpc.StatusCode.FAILED_PRECONDITION,
    errors.Impossible: grpc.StatusCode.FAILED_PRECONDITION,
    errors.FormatTooCostly: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlinePassed: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.VersionMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ProtocolError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.StoreError: grpc.StatusCode.UNAVAILABLE,
    errors.PacelineError: grpc.StatusCode.INTERNAL,
}


@asynccontextmanager
async def border(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Around the body of an RPC: what it raises ends the RPC with its status."""
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except errors.PacelineError as error:
        try:
            await _abort(context, status_of(error))
        finally:
            # Its frames hold the call's message, and some of them the error itself.
            error.__traceback__ = None
    except Exception:
        logger.exception("an RPC failed unexpectedly")
        await _abort(context, status_of(errors.PacelineError("internal error")))


async def send_headers(context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Before the first write of a stream whose writes may be cut short.

    gRPC sends the headers with the first message, and knows of it when that write has ended. Where
    it never ends, they would go with the status once more: the core refuses that, and no status
    leaves. Sent by themselves, they wait for no reader; whoever cancels this waits for them.
    """
    sending = asyncio.ensure_future(context.send_initial_metadata(()))
    try:
        await asyncio.shield(sending)
    except asyncio.CancelledError:
        with suppress(grpc.aio.BaseError):
            await sending
        raise


def status_of(error: errors.PacelineError) -> status_pb2.Status:
    """The status a caller gets for `error`."""
    code = next(_CODES[kind] for kind in type(error).__mro__ if kind in _CODES)
    status = status_pb2.Status(code=code.value[0], message=str(error))
    status.details.extend(map(_packed, _details(error)))
    return status


def _details(error: errors.PacelineError) -> list[Message]:
    details: list[Message] = [error_details_pb2.ErrorInfo(reason=_reason(error), domain=DOMAIN)]
    match error:
        case errors.InvalidRequest():
            details.append(_bad_request(error))
        case errors.BusyError(retry_after=seconds):
            details.append(_retry_info(seconds))
        case errors.StoreError():
            details.append(_retry_info(STORE_RETRY_SECONDS))
    return details


def _reason(error: errors.PacelineError) -> str:
    """`OffsetOutOfRange` -> `OFFSET_OUT_OF_RANGE`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).upper()


def _bad_request(error: errors.InvalidRequest) -> Any:
    violation = error_details_pb2.BadRequest.FieldViolation(
        field=error.field, description=str(error)
    )
    return error_details_pb2.BadRequest(field_violations=[violation])


def _retry_info(seconds: float) -> Any:
    delay = duration_pb2.Duration()
    delay.FromNanoseconds(int(seconds * 1e9))
    return error_details_pb2.RetryInfo(retry_delay=delay)


def _packed(message: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


async def _abort(context: grpc.aio.ServicerContext[Any, Any], status: status_pb2.Status) -> None:
    raised = rpc_status.to_status(status)
    await context.abort(raised.code, raised.details, raised.trailing_metadata)
