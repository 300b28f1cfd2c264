"""How long one generation goes on trying, and how long it waits between calls."""

from __future__ import annotations

import random
from time import monotonic

import grpc

from paceline._servers import Server
from paceline.errors import DeadlineExceeded, PacelineError

FIRST_WAIT = 0.1
LONGEST_WAIT = 2.0
# So that callers who were all refused at once do not all come back at once.
_SPREAD = 1.25
_MOST_DOUBLINGS = 16


class Patience:
    """`seconds` from the first break on, until a token comes; never beyond `timeout`.

    Waits double from 0.1 to 2 s, half of each by chance. A server that says when
    to come back is not asked before; another one may be.
    """

    def __init__(self, seconds: float, timeout: float | None) -> None:
        self._seconds = seconds
        self._ends = None if timeout is None else monotonic() + timeout
        self._gives_up: float | None = None
        self._breaks = 0
        self._asked_back: dict[Server, float] = {}

    def again(self) -> Patience:
        """The same for another generation, which ends no later."""
        made = Patience(self._seconds, None)
        made._ends = self._ends
        return made

    @property
    def any(self) -> bool:
        """Whether a break is to be borne at all."""
        return self._seconds > 0

    def remaining(self) -> float | None:
        """Seconds left of the timeout; DeadlineExceeded when there are none."""
        if self._ends is None:
            return None
        left = self._ends - monotonic()
        if left <= 0:
            code = grpc.StatusCode.DEADLINE_EXCEEDED
            raise DeadlineExceeded("the timeout passed between two attempts", code=code)
        return left

    def progress(self) -> None:
        """A token came."""
        self._gives_up, self._breaks = None, 0

    def broke(self, server: Server, error: PacelineError) -> None:
        """A call to this server ended with `error`."""
        now = monotonic()
        self._breaks += 1
        if self._gives_up is None:
            self._gives_up = now + self._seconds
        if error.retry_after is not None:
            self._asked_back[server] = now + error.retry_after

    def wait_for(self, server: Server) -> float | None:
        """Seconds until this server may be called; None when that is too long."""
        assert self._gives_up is not None
        now = monotonic()
        left = self._gives_up - now
        asked = self._asked_back.get(server, now) - now
        if left <= 0 or asked > left:
            return None
        ceiling = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(self._breaks - 1, _MOST_DOUBLINGS))
        asked *= random.uniform(1, _SPREAD)
        wait = min(left, max(asked, random.uniform(ceiling / 2, ceiling)))
        return wait if self._ends is None else max(0.0, min(wait, self._ends - now))
