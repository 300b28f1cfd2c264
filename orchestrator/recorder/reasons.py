"""Why a round holds no draft, and why a session lost a worker: what spans and counters say."""

from __future__ import annotations

from orchestrator.recorder.known import Known
from orchestrator.steering.events import WorkerLost
from services.runtime.telemetry.names import Cause, Fallback


def fallback(known: Known) -> str:
    """The same of a session whose verifier takes what draft there is."""
    state = known.state
    if state is None or not state.config.method:
        return ""
    drafter, verifier = state.drafter, state.verifier
    if state.cap == 0:
        return Fallback.LOAD
    if known.rests:
        return Fallback.DOES_NOT_PAY
    if verifier is not None and verifier.method:
        return Fallback.NOTHING_READY
    if not state.wants_drafter:
        return Fallback.GIVEN_UP
    if drafter is None:
        return Fallback.NO_DRAFTER
    return Fallback.NOTHING_READY if drafter.opened else Fallback.OPENING


def cause(event: WorkerLost) -> str:
    """One word of a fixed set; a worker's own words are dropped."""
    if event.fatal:
        return Cause.REFUSED
    if event.busy:
        return Cause.FULL
    return Cause.LOST if event.opening is None else Cause.FAILED
