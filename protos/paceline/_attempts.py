"""One generation over as many calls as it takes.

What breaks a call, and what follows:

- the connection, the server or a worker of it went away (UNAVAILABLE; INTERNAL,
  UNKNOWN and CANCELLED without a reason, which is how a broken transport reads;
  a stream without its end): the next call goes to the next server. It is the
  same Generate as long as no Started came, which is idempotent by its request
  id, and a Resume afterwards.
- RESOURCE_EXHAUSTED with a time to come back: the same, unless it answers the
  first Generate. That one is refused, and there is no session yet.
- NOT_FOUND for a Resume before any token came: the session was lost with its
  server. Generate again, with the seed that Started told.
- ABORTED: somebody else's later Resume took the session over, and it wins. No
  earlier call of this generation can be that one, though a server that stood
  still may carry it out late: every call says whose it is and its number.
- DATA_LOSS: the store lost what the caller has, and other tokens stand or would come in its
  place. A Resume says by a hash what those were, so that no text is spliced of two.
- anything else ends the generation.
"""

from __future__ import annotations

import secrets
from typing import Any

import grpc

from paceline._decode import decode_event
from paceline._patience import Patience
from paceline._progress import Progress
from paceline._servers import Server, Servers
from paceline.errors import PacelineError
from paceline.hashing import EMPTY_HASH
from paceline.results import Chunk, Event, Started
from paceline.v1 import inference_pb2 as pb

_TRANSPORT = (
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.CANCELLED,
)


Limits = tuple[float, float | None]
"""Patience and timeout of a generation, in seconds; see `Patience`."""


class Attempts:
    """The calls of one generation, one after another.

    `first` starts it, or goes on with it from an offset. `patience` is 0 to end
    it with its first call.
    """

    def __init__(
        self,
        servers: Servers,
        first: pb.GenerateRequest | pb.ResumeRequest,
        patience: float,
        timeout: float | None,
    ) -> None:
        self._servers = servers
        self._generate: pb.GenerateRequest | None = None
        if isinstance(first, pb.GenerateRequest):
            self.session_id, self._generate = first.request_id, first
            self._progress = Progress(0, EMPTY_HASH)
        else:
            self.session_id = first.session_id
            self._progress = Progress(first.offset, _told_hash(first))
        self._offset = self._progress.offset
        self._seed = 0
        self._limits: Limits = (patience, timeout)
        self._patience: Patience | None = None
        self._resuming = self._generate is None
        self._reader, self._calls = secrets.token_hex(8), 0
        self._answered = False
        self._server: Server | None = None
        self._call: Any = None

    @property
    def ended(self) -> bool:
        """Whether the Complete came."""
        return self._progress.ended

    def open(self) -> Any:
        """Begin the next call; its messages go to `take`, what ends it early to `recover`."""
        self._server = self._servers.current
        method, request = self._next_request()
        timeout = self._endurance().remaining()
        self._calls += 1
        self._answered = False
        mine = ("paceline-call", f"{self._reader}/{self._calls}")
        self._call = self._server.call(method, request, timeout, mine)
        return self._call

    def take(self, message: Any) -> Event | None:
        """What the caller has not seen yet of a response. Raises Internal for a gap."""
        decoded = decode_event(message)
        return None if decoded is None else self.take_event(decoded)

    def take_event(self, told: Event) -> Event | None:
        """The same of a decoded one."""
        event = self._progress.take(told)
        if isinstance(told, Started):
            self._answered = self._resuming = True
            self._seed = told.seed
        if isinstance(event, Chunk):
            self._endurance().progress()
        return event

    def begun(self, seed: int, by: Attempts) -> None:
        """The session exists, with this seed, by a call of another's, which goes on in this one."""
        self._resuming, self._seed = True, seed
        self._server, self._patience = by._server, by._patience and by._patience.again()
        self._reader, self._calls = by._reader, by._calls

    async def recover(self, error: PacelineError) -> None:
        """Wait until it is time for the next call; raises `error` when there will be none."""
        patience = self._endurance()
        if not (patience.any and self._goes_on(error)):
            raise error
        assert self._server is not None
        if error.code is grpc.StatusCode.NOT_FOUND:
            self._start_over()
        patience.broke(self._server, error)
        self._servers.failed(self._server)
        wait = patience.wait_for(self._servers.current)
        if wait is None:
            raise error
        await self._servers.pause(wait)

    def cancel(self) -> None:
        """End the call that is open, if any."""
        if self._call is not None:
            self._call.cancel()

    def _endurance(self) -> Patience:
        # The timeout runs from the first call on, not from when the stream was made.
        if self._patience is None:
            self._patience = Patience(*self._limits)
        return self._patience

    def _next_request(self) -> tuple[str, Any]:
        if not self._resuming:
            return "Generate", self._generate
        had = self._progress
        return "Resume", pb.ResumeRequest(
            session_id=self.session_id, offset=had.offset, prefix_hash=had.prefix_hash
        )

    def _goes_on(self, error: PacelineError) -> bool:
        match error.code:
            case grpc.StatusCode.UNAVAILABLE:
                return True
            case grpc.StatusCode.RESOURCE_EXHAUSTED:
                return error.retry_after is not None and (self._resuming or self._calls > 1)
            case grpc.StatusCode.NOT_FOUND:
                return self._may_start_over()
            case code:
                return code in _TRANSPORT and not error.reason

    def _may_start_over(self) -> bool:
        nothing_came = self._progress.offset == self._offset
        resumed = self._resuming and not self._answered
        return resumed and self._generate is not None and nothing_came

    def _start_over(self) -> None:
        assert self._generate is not None
        request = pb.GenerateRequest()
        request.CopyFrom(self._generate)
        request.sampling.seed = self._seed
        self._generate, self._resuming = request, False


def _told_hash(first: pb.ResumeRequest) -> int | None:
    """The hash of what the caller has; None where it has tokens and did not tell."""
    if first.HasField("prefix_hash"):
        return first.prefix_hash
    return None if first.offset else EMPTY_HASH
