"""Paceline's exceptions, split by whose fault they are.

    PacelineError
    ├── CallerError              the request is wrong; repeating it will not help
    │   ├── InvalidRequest       a field, its value and the allowed range
    │   ├── AlreadyExists        the request id is taken by other content
    │   ├── Unauthenticated      no token, or none that is known
    │   ├── NotFound             no such session for this caller
    │   └── OffsetOutOfRange     a resume beyond the committed text
    ├── BusyError                nothing is wrong, try again later
    │   ├── Overloaded           admission refused before any work
    │   ├── NoWorker             no worker of a role can take the session
    │   ├── Draining             this process stops; another one goes on
    │   └── StreamStalled        the client neither reads nor sends
    ├── SessionError             this session ended here
    │   ├── Fenced               another orchestrator owns the session now
    │   ├── DataLoss             what was asked for is not kept any more
    │   ├── SessionAborted       ended by Abort
    │   ├── Impossible           it can never go on
    │   ├── FormatTooCostly      following its response format takes too much
    │   └── DeadlinePassed       the session's own deadline; it can be resumed
    ├── ProtocolError            a peer broke the protocol
    │   └── VersionMismatch      a peer speaks no protocol version of ours
    ├── StartError               a process cannot start: settings, files, peers
    └── StoreError               the session store refused or is away

One border turns these into gRPC statuses, by a table: `services.runtime.serving`.
"""

from __future__ import annotations

import errno

_NO_MEMORY = ("allocate memory", "not enough memory", "out of memory", "STATUS_ALLOC_FAILED")
"""What torch's errors say on CPUs, of CUDA itself, and of its libraries."""
_NO_ROOM = ("No space left on device", "Disk quota exceeded")
"""What the errors of libraries say that are no OSErrors, as those of safetensors."""


class PacelineError(Exception):
    """Root of everything Paceline raises on purpose. `str()` is fit for a caller."""


class CallerError(PacelineError):
    """The request is wrong."""


class InvalidRequest(CallerError):
    """One field of the request is out of its range.

    `field` is its path in the request (`sampling.top_p`).
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        super().__init__(f"{field}: {value!r} is not allowed; allowed is {allowed}")


class AlreadyExists(CallerError):
    """The request id names a session with other content."""


class Unauthenticated(CallerError):
    """The call carries no token, or an unknown one; the error does not say which."""


class NotFound(CallerError):
    """There is no such session for this caller."""


class OffsetOutOfRange(CallerError):
    """A resume offset beyond the committed text."""


class BusyError(PacelineError):
    """Nothing is wrong; try again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class Overloaded(BusyError):
    """Admission refused the request before any work was done."""


class NoWorker(BusyError):
    """No worker of the needed role can take the session."""


class Draining(BusyError):
    """This process stops; another one takes the call, or the session that was handed over."""


class StreamStalled(BusyError):
    """The client reads nothing of its stream, or sends no request; the session can be resumed."""


class SessionError(PacelineError):
    """This session ended here."""


class Fenced(SessionError):
    """Another orchestrator owns the session now."""


class DataLoss(SessionError):
    """What was asked for is not kept any more."""


class SessionAborted(SessionError):
    """The session was ended by Abort."""


class Impossible(SessionError):
    """The session can never go on: its format, stop tokens and biases leave no token."""


class FormatTooCostly(SessionError):
    """Following the session's response format takes more CPU time than an output may."""


class DeadlinePassed(SessionError):
    """The session's own deadline passed; it can be resumed."""


class ProtocolError(PacelineError):
    """A peer sent a message that no correct peer sends."""


class VersionMismatch(ProtocolError):
    """A peer speaks no protocol version of ours."""


class StartError(PacelineError):
    """A process cannot start. The message names the setting, file or peer."""


class StoreError(PacelineError):
    """The session store refused a command or is away."""


def out_of_memory(error: BaseException) -> bool:
    """Whether a device or the machine ran out of memory, by the messages of torch's errors.

    torch has a class for a device's allocator; a CPU's is a plain RuntimeError.
    """
    if isinstance(error, MemoryError):
        return True
    said = str(error)
    named = type(error).__name__ == "OutOfMemoryError"
    return isinstance(error, RuntimeError) and (named or any(words in said for words in _NO_MEMORY))


def out_of_room(error: BaseException) -> bool:
    """Whether a disk was full, or a user's share of it."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return any(words in str(error) for words in _NO_ROOM)


def not_here(error: ModuleNotFoundError) -> StartError:
    """The error of a command whose packages are not installed."""
    remedy = "pip install 'paceline[local]' brings all there are"
    return StartError(f"needs the module {error.name}, which is not installed here ({remedy})")
