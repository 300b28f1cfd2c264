"""What this orchestrator has placed on one worker, in all and since its last report. Pure."""

from __future__ import annotations

SessionName = str | int
"""How a session is called on a link: by its id, in protocol 2 by its handle."""


class Placed:
    """Sessions, and the tokens of K/V that each may come to need."""

    def __init__(self) -> None:
        self.tokens = 0
        self.fresh_tokens = 0
        self._sessions: dict[SessionName, int] = {}
        self._fresh: set[SessionName] = set()

    @property
    def told(self) -> int:
        """Tokens of those that the last report counts."""
        return self.tokens - self.fresh_tokens

    @property
    def fresh(self) -> int:
        """Sessions placed since the last report."""
        return len(self._fresh)

    def add(self, session: SessionName, tokens: int) -> None:
        """A session is opened there, for the first time or once more."""
        self.drop(session)
        self._sessions[session] = tokens
        self._fresh.add(session)
        self.tokens += tokens
        self.fresh_tokens += tokens

    def drop(self, session: SessionName) -> None:
        """It is closed there. May be repeated."""
        tokens = self._sessions.pop(session, 0)
        self.tokens -= tokens
        if session in self._fresh:
            self._fresh.discard(session)
            self.fresh_tokens -= tokens

    def reported(self) -> None:
        """The worker has told its load: what was placed is in it."""
        self._fresh.clear()
        self.fresh_tokens = 0
