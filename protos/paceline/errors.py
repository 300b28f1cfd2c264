"""What a call to Paceline can fail with: one class per gRPC status that matters.

PacelineError
├── InvalidArgument      a field of the request is out of its range
├── NotFound             no such session
├── AlreadyExists        the request id is taken by other content
├── OutOfRange           a resume beyond the text there is
├── FailedPrecondition   the session was aborted
├── Aborted              another server took the session over
├── DataLoss             what was asked for is not kept any more
├── ResourceExhausted    full; try again after `retry_after`
├── Unavailable          nobody there; try again after `retry_after`
├── DeadlineExceeded     the timeout passed
├── Unauthenticated      no or wrong credentials
├── PermissionDenied     credentials that do not allow this
└── Internal             a fault of the server, or any other status
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

_D = TypeVar("_D")


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field of a refused request: its path, and what is allowed."""

    field: str
    description: str


class PacelineError(Exception):
    """Root of what a call raises.

    `code` is the gRPC status, `reason` the server's name for the cause (empty
    when the server said none), `retry_after` seconds to wait before another
    try (None when another try will not help).
    """

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode = grpc.StatusCode.INTERNAL,
        reason: str = "",
        retry_after: float | None = None,
        violations: tuple[FieldViolation, ...] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.retry_after = retry_after
        self.violations = violations


class InvalidArgument(PacelineError):
    """The request is wrong; `violations` name its fields."""


class NotFound(PacelineError):
    """There is no such session."""


class AlreadyExists(PacelineError):
    """The request id names a session with other content."""


class OutOfRange(PacelineError):
    """A resume offset beyond the text there is."""


class FailedPrecondition(PacelineError):
    """The session is in no state for this; it was aborted, say."""


class Aborted(PacelineError):
    """Another server took the session over, by a later resume."""


class DataLoss(PacelineError):
    """What was asked for is not kept any more."""


class ResourceExhausted(PacelineError):
    """The server is full."""


class Unavailable(PacelineError):
    """The server, or a worker that it needs, cannot be reached."""


class DeadlineExceeded(PacelineError):
    """The timeout passed. The session stays resumable for a while."""


class Unauthenticated(PacelineError):
    """Credentials are missing or wrong."""


class PermissionDenied(PacelineError):
    """The credentials do not allow this."""


class Internal(PacelineError):
    """A fault of the server, or a status without a class of its own."""


_CLASSES: dict[grpc.StatusCode, type[PacelineError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.OUT_OF_RANGE: OutOfRange,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.ABORTED: Aborted,
    grpc.StatusCode.DATA_LOSS: DataLoss,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
}


def typed(error: grpc.aio.AioRpcError) -> PacelineError:
    """The typed error for a failed RPC."""
    details = _details(error)
    info = _find(details, error_details_pb2.ErrorInfo)
    retry = _find(details, error_details_pb2.RetryInfo)
    request = _find(details, error_details_pb2.BadRequest)
    made = _CLASSES.get(error.code(), Internal)(
        error.details() or error.code().name,
        code=error.code(),
        reason=info.reason if info else "",
        retry_after=retry.retry_delay.ToTimedelta().total_seconds() if retry else None,
        violations=tuple(
            FieldViolation(violation.field, violation.description)
            for violation in (request.field_violations if request else ())
        ),
    )
    made.__cause__ = error
    return made


def cut_short() -> Unavailable:
    """The error of a stream that ended without its end."""
    return Unavailable("the stream was cut short", code=grpc.StatusCode.UNAVAILABLE)


def _details(error: Any) -> list[Any]:
    try:
        status = rpc_status.from_call(error)
    except Exception:
        # Proxies may cut or rewrite the trailers; the code and message still count.
        return []
    return [] if status is None else list(status.details)


def _find(details: list[Any], kind: type[_D]) -> _D | None:
    for detail in details:
        found: Any = kind()
        if detail.Unpack(found):
            return found  # type: ignore[no-any-return]
    return None
