"""How long a worker should take to open a session, by its queue and its prefill pace.

A worker prefills prompts side by side, so a session waits for all that were sent before it.
The pace is the slowest one lately, waits included, and decays slowly. Pure.
"""

from __future__ import annotations

FIRST_PACE = 0.01
"""Seconds a token, before anything was measured."""
_FEWEST_TOKENS = 64
"""Shorter texts are ignored: they measure the time of a step, not the pace."""
_MEMORY = 0.9


class Openings:
    """The sessions, by handle, that one worker is opening."""

    def __init__(self) -> None:
        self._pace = FIRST_PACE
        # Tokens to prefill, those queued before included, and when the command was sent.
        self._sent: dict[int, tuple[int, int, float]] = {}
        self._measured = False

    def clear(self) -> None:
        """The worker was connected anew, without any session."""
        self._sent.clear()

    def send(self, handle: int, tokens: int, now: float) -> None:
        """A command to open a session with so many tokens of text was sent."""
        self._sent.pop(handle, None)
        self._sent[handle] = (tokens, self._waiting, now)

    def opened(self, handle: int, cached: int, now: float) -> None:
        """The session is open; `cached` tokens of the text came from the prefix cache."""
        known = self._sent.pop(handle, None)
        if known is None:
            return
        tokens, before, sent = known
        fed = max(_FEWEST_TOKENS, tokens - cached + before)
        pace = (now - sent) / fed
        self._pace = max(pace, _MEMORY * self._pace) if self._measured else pace
        self._measured = True

    def forget(self, handle: int) -> None:
        """The session was closed, or failed."""
        self._sent.pop(handle, None)

    def expected(self, tokens: int, queued: int) -> float:
        """Seconds until another text of so many tokens is prefilled; `queued`: as reported."""
        return self._pace * (tokens + max(queued, self._waiting))

    @property
    def _waiting(self) -> int:
        return sum(tokens for tokens, _, _ in self._sent.values())
