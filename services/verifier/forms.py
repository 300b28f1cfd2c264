"""What following response formats may take of the core's thread, in which all sessions are served.

A usual format takes microseconds a row and is nobody's concern. Those that take far more, the
heavy ones, share a small part of the time among them: one row of one such session a step, whose
mask is made beside the forward, and none while they are beyond their part, as long as anybody else
is there. What they take beyond what an output may at all ends them (`services.grammar.spending`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from services.engine.structure import Matcher
from services.verifier.fed_text import FedText

SHARE = 0.1
"""Of the time, for all heavy formats together where others wait."""
BEYOND = 0.05
"""Seconds that they may be ahead of it."""


class FormTime:
    """What heavy formats took lately. Times in seconds, `now` on the core's clock."""

    def __init__(self) -> None:
        self._ahead = self._at = 0.0

    def took(self, session: FedText, now: float) -> float:
        """What a session's format took since the last time, which may count; those seconds."""
        if session.matcher is None:
            return 0.0
        taken = session.matcher.spending.lap()
        if session.heavy:
            self._ahead = self._left(now) + taken
            self._at = now
        return taken

    def rest(self, sessions: Iterable[FedText], now: float) -> float:
        """How long heavy ones among the sessions leave the time to the others; 0 = not at all."""
        beyond = self._left(now) - BEYOND
        return beyond / SHARE if beyond > 0 and crowded(sessions) else 0.0

    def _left(self, now: float) -> float:
        return max(0.0, self._ahead - SHARE * (now - self._at))


class MasksAside:
    """Masks of heavy formats, made in a thread of its own while a forward runs.

    Llguidance lets go of Python's interpreter meanwhile. What goes wrong goes wrong once more
    where the mask is asked for.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "masks")
        self._making: list[Future[float]] = []

    def begin(self, sessions: Iterable[FedText]) -> None:
        """A forward begins, behind which the heavy ones among these sessions want a mask."""
        for own in sessions:
            if own.matcher is not None and own.heavy:
                self._making.append(self._thread.submit(_prepare, own.matcher))

    def end(self) -> float:
        """Have them all; the seconds that they saved, which is less than 0 where they cost some.

        That is what they took, less what was left of it to wait for.
        """
        if not self._making:
            return 0.0
        began, making = self._clock(), self._making
        self._making = []
        took = sum(own.result() for own in making)
        return took - (self._clock() - began)


def _prepare(matcher: Matcher) -> float:
    """Make the mask behind the output; the CPU seconds that it took."""
    before = matcher.spending.seconds
    with suppress(Exception):
        matcher.prepare()
    return matcher.spending.seconds - before


def crowded(sessions: Iterable[FedText]) -> bool:
    """Whether anybody is there who would wait for a heavy format."""
    return any(not own.heavy and own.waits for own in sessions)
