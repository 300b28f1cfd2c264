"""What sessions ask of workers, there or not: what autoscaling goes by.

Workers that are scaled to zero say nothing of what waits for them; sessions do. Every
session is counted by its own orchestrator alone, so the figures of all add up.
"""

from __future__ import annotations

from orchestrator.core.state import Phase, State


def queued_tokens(state: State) -> int:
    """Tokens that a verifier has yet to check, those in a step included.

    Where none has the session open that is the whole text, which it has to take in first.
    """
    if state.phase is not Phase.RUNNING:
        return 0
    if state.verifier is None or not state.verifier.opened:
        return len(state.config.prompt) + len(state.committed)
    return sum(1 + len(block.piece.tree) for block in state.live)


def wants_drafts(state: State) -> bool:
    """Whether the session is to be drafted for, whether a drafter has it or not.

    Not while pacing rests or the load allows no drafts: then a drafter has nothing to do.
    """
    return state.phase is Phase.RUNNING and state.wants_drafter and state.window > 0


def decodes_plainly(state: State) -> bool:
    """Whether no drafter has the session open, or pacing rests."""
    drafter = state.drafter
    return drafter is None or not drafter.opened or state.policy.window == 0
