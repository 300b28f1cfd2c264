"""What this orchestrator has placed on one worker, in all and since its last report. Pure."""

from __future__ import annotations


class Placed:
    """Sessions, by handle, and the tokens of K/V that each may come to need."""

    def __init__(self) -> None:
        self.tokens = 0
        self.fresh_tokens = 0
        self._sessions: dict[int, int] = {}
        self._fresh: set[int] = set()

    @property
    def told(self) -> int:
        """Tokens of those that the last report counts."""
        return self.tokens - self.fresh_tokens

    @property
    def fresh(self) -> int:
        """Sessions placed since the last report."""
        return len(self._fresh)

    def add(self, handle: int, tokens: int) -> None:
        """A session is opened there, for the first time or once more."""
        self.drop(handle)
        self._sessions[handle] = tokens
        self._fresh.add(handle)
        self.tokens += tokens
        self.fresh_tokens += tokens

    def drop(self, handle: int) -> None:
        """It is closed there. May be repeated."""
        tokens = self._sessions.pop(handle, 0)
        self.tokens -= tokens
        if handle in self._fresh:
            self._fresh.discard(handle)
            self.fresh_tokens -= tokens

    def reported(self) -> None:
        """The worker has told its load: what was placed is in it."""
        self._fresh.clear()
        self.fresh_tokens = 0
