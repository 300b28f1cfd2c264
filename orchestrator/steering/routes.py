"""Where a session's steps come from and go to, and what its verifier and drafter may say of it.

Frames come in as the codec leaves them: their columns go together, each session is there once, and
the accepted tokens are a path of those judged. What depends on the session is decided here:

1. A step counts if it is of the current opening of the session's verifier. It begins where the text
   received so far ends, below the limit, and passes it by at most the window.
2. A draft counts if it is of the current opening of the session's drafter. It begins at most
   `MOST_AHEAD` tokens behind the text, and a session has at most `MOST_DRAFTS` between two steps.
3. What was superseded is skipped, for it is late. What could never have been right is a fault of
   the worker that said it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.steering.ports import Steered, Taken
from services.contract.frames import StepRow

MOST_AHEAD = 256
"""Tokens; a verifier asks for windows of at most 255."""
MOST_NODES = 1024
"""Tokens of one draft."""
MOST_DRAFTS = 1024
"""Drafts of a session between two of its steps."""


@dataclass(slots=True, eq=False)
class Route:
    """One session's workers, and what was received of it.

    `received`: tokens of its output; `limit`, `window`: as its verifier was last told. `pending`:
    what it has not taken yet, which it may from `due` on, in seconds; `waits`: for that time.
    `ahead`: how far its drafter was last told to be ahead; `unheard`: the last tokens received, of
    which the drafter was not told, see `resting`.
    """

    handle: int
    session: Steered
    vocab_size: int = 0
    verifier: str = ""
    opening: int = 0
    received: int = 0
    limit: int = 0
    window: int = 0
    drafter: str = ""
    draft_opening: int = 0
    drafts: int = 0
    ahead: int = 1
    unheard: list[int] = field(default_factory=list)
    pending: list[Taken] = field(default_factory=list)
    due: float = 0.0
    waits: bool = False

    def fault(self, row: StepRow) -> str:
        """Why no verifier can have said this of the current opening; empty: it can."""
        most = self.window + 1
        if row.opening != self.opening:
            return f"a step of opening {row.opening}, where {self.opening} is the last"
        if row.position != self.received:
            return f"a step at {row.position}, where {self.received} tokens were received"
        if row.position >= self.limit or len(row.tokens) > most or len(row.judged) > most:
            return f"a step at {row.position} beyond its limit of {self.limit} and {self.window}"
        return self._beyond(row.tokens) or self._beyond(row.judged)

    def take(self, taken: Taken) -> None:
        """The text goes on with these tokens, which the session does not know yet."""
        self.received += len(taken.row.tokens)
        self.drafts = 0
        if taken.window is not None:
            self.ahead = taken.window
        self.pending.append(taken)

    def draft_fault(self, opening: int, position: int, count: int, highest: int) -> str:
        """Why its drafter cannot have drafted so many tokens, `highest` at most; empty: it can."""
        if opening > self.draft_opening:
            return f"a draft of opening {opening}, where {self.draft_opening} is the last"
        if position > self.received + MOST_AHEAD:
            return f"a draft at {position}, where {self.received} tokens were received"
        if count > MOST_NODES:
            return f"a draft of {count} tokens"
        if self.drafts >= MOST_DRAFTS:
            return f"{self.drafts} drafts without a step"
        return self._beyond((highest,))

    def _beyond(self, tokens: tuple[int, ...]) -> str:
        if self.vocab_size and tokens and max(tokens) >= self.vocab_size:
            return f"a token beyond the vocabulary of {self.vocab_size}"
        return ""
