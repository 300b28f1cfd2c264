"""How long a worker should take to open a session: by what is queued there, and by its pace.

A worker feeds prompts side by side, so a session waits for all that were sent before it.
The pace is the slowest lately, waits included, and is forgotten slowly. Pure.
"""

from __future__ import annotations

FIRST_PACE = 0.01
"""Seconds a token, before anything was measured."""
_FEWEST_TOKENS = 64
"""A shorter text tells how long a step is, and nothing of the pace."""
_MEMORY = 0.9


class Openings:
    """The sessions that one worker was told to open, and has not."""

    def __init__(self) -> None:
        self._pace = FIRST_PACE
        # Tokens to be fed, those before them included, and when the open left.
        self._sent: dict[str, tuple[int, int, float]] = {}
        self._measured = False

    def clear(self) -> None:
        """The worker was connected anew: it was told nothing."""
        self._sent.clear()

    def send(self, session: str, tokens: int, now: float) -> None:
        """The worker was told to open a session whose text has so many tokens."""
        self._sent.pop(session, None)
        self._sent[session] = (tokens, self._waiting, now)

    def opened(self, session: str, cached: int, now: float) -> None:
        """It did; `cached` tokens of the text were there already."""
        known = self._sent.pop(session, None)
        if known is None:
            return
        tokens, before, sent = known
        fed = max(_FEWEST_TOKENS, tokens - cached + before)
        pace = (now - sent) / fed
        self._pace = max(pace, _MEMORY * self._pace) if self._measured else pace
        self._measured = True

    def forget(self, session: str) -> None:
        """It was told to close the session, or failed it."""
        self._sent.pop(session, None)

    def expected(self, tokens: int, queued: int) -> float:
        """Seconds until another text of so many tokens is fed; `queued`: what the worker tells."""
        return self._pace * (tokens + max(queued, self._waiting))

    @property
    def _waiting(self) -> int:
        return sum(tokens for tokens, _, _ in self._sent.values())
