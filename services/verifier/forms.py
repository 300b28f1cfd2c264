"""What following response formats may take of the core's thread, in which all sessions are served.

A usual format takes microseconds a row and is nobody's concern. Those that take far more, the
heavy ones, share a small part of the time among them: one block of one such session a step, and
none while they are beyond their part, as long as anybody else is there. What they take beyond
what an output may at all ends them (`services.grammar.spending`).
"""

from __future__ import annotations

from collections.abc import Iterable

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


def crowded(sessions: Iterable[FedText]) -> bool:
    """Whether anybody is there who would wait for a heavy format."""
    return any(not own.heavy and own.waits for own in sessions)
