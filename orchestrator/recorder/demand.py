"""The load that sessions put on workers, present or not: the signals of autoscaling.

Workers that are scaled to zero cannot report their load; sessions can. Each session is
counted by its own orchestrator alone, so the figures of all add up.
"""

from __future__ import annotations

from orchestrator.recorder.known import Known
from orchestrator.steering.config import Phase


def queued_tokens(known: Known) -> int:
    """`queued_tokens` of a session whose verifier runs it: what its next step is likely to have."""
    state = known.state
    if state is None or state.phase is not Phase.RUNNING:
        return 0
    if state.verifier is None or not state.verifier.opened:
        return len(state.config.prompt) + len(state.committed)
    return 1 + known.drafted if state.limit > len(state.committed) else 0


def wants_drafts(known: Known) -> bool:
    """`wants_drafts` of a session whose verifier runs it."""
    state = known.state
    if state is None or state.phase is not Phase.RUNNING or known.rests:
        return False
    return state.wants_drafter and state.window > 0


def decodes_plainly(known: Known) -> bool:
    """`decodes_plainly` of a session whose verifier runs it, and may draft for it."""
    state = known.state
    if state is None:
        return False
    if known.rests:
        return True
    drafter, verifier = state.drafter, state.verifier
    if verifier is not None and verifier.opened and verifier.method:
        return False
    return drafter is None or not drafter.opened
