"""How far a verifier may run ahead of what the store has acknowledged.

Enough that it never waits while all goes well: what it decides in the steps that pass until its
steps are stored and it hears of that, and in two steps more, at a token a step more than it has
decided lately. A store that is slow, or gone, stops the session there. So does an orchestrator
that falls behind: what waits for it is late for everybody.
"""

from __future__ import annotations

from math import ceil

from orchestrator.steering.events import Grant
from orchestrator.steering.state import Turn

LEAST = 16
MOST = 512
"""Tokens."""
_MEMORY = 0.8
"""Of a moving average."""


def limit_of(turn: Turn) -> int:
    """How long the output may get now. A limit never falls, and none is above the length limit."""
    pace, most = turn.pace, turn.config.window + 1
    a_step = min(pace.tokens + 1, most) if pace.tokens else most
    ahead = max(LEAST, min(ceil(a_step * (2 + ceil(pace.steps_behind))), MOST))
    return max(turn.limit, min(turn.stored + ahead, turn.config.sampling.max_tokens))


def grant(turn: Turn) -> None:
    """Let the verifier go on, as far as it may."""
    limit = limit_of(turn)
    if turn.verifier is None or limit == turn.limit:
        return
    if turn.limit <= len(turn.committed):
        # It could not speak before.
        turn.heard_at = turn.now
    turn.limit = limit
    turn.actions.append(Grant(limit))


def averaged(before: float, measured: float) -> float:
    """A moving average; 0 = nothing was measured yet."""
    return _MEMORY * before + (1 - _MEMORY) * measured if before else measured
