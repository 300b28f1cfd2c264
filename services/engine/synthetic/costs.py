"""How long a forward takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds of one forward: of one session, and of what comes on top.

    `single_ms`: one row a session; `several_ms`: more rows of some session; on top
    `row_ms` for each row of a session beyond its first, and `session_ms` for each session
    beyond the first. `prompt_ms`: prompts alone; `prompt_token_ms`: each token of one.
    """

    single_ms: float
    several_ms: float
    row_ms: float = 0.0
    session_ms: float = 0.0
    prompt_ms: float = 0.0
    prompt_token_ms: float = 0.0

    def forward_ms(self, rows: Sequence[int], prompt_tokens: int = 0) -> float:
        """A forward with so many rows of each session, beside tokens of prompts."""
        drafting = [count for count in rows if count > 0]
        prompts = self.prompt_token_ms * prompt_tokens
        if not drafting:
            return self.prompt_ms + prompts
        base = self.several_ms if max(drafting) > 1 else self.single_ms
        further = sum(drafting) - len(drafting)
        return base + prompts + self.row_ms * further + self.session_ms * (len(drafting) - 1)
