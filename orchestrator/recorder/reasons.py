"""Why a round holds no draft, and why a session lost a worker: what spans and counters say."""

from __future__ import annotations

from orchestrator.core.events import WorkerLost
from orchestrator.core.state import State
from orchestrator.recorder.known import Known
from orchestrator.steering.events import WorkerLost as SteeredLost
from services.runtime.telemetry.names import Cause, Fallback


def fallback(state: State) -> str:
    """Why a block without draft tokens was sent; empty if the session does not speculate."""
    drafter = state.drafter
    if not state.config.method:
        return ""
    if not state.wants_drafter:
        return Fallback.GIVEN_UP
    if drafter is None:
        return Fallback.NO_DRAFTER
    if not drafter.opened:
        return Fallback.OPENING
    if state.policy.window == 0:
        return Fallback.DOES_NOT_PAY
    return Fallback.LOAD if state.cap == 0 else Fallback.NOTHING_READY


def steered_fallback(known: Known) -> str:
    """The same of a session whose verifier takes what draft there is."""
    state = known.steered
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


def cause(event: WorkerLost | SteeredLost) -> str:
    """One word of a fixed set; a worker's own words are dropped."""
    if event.fatal:
        return Cause.REFUSED
    if event.busy:
        return Cause.FULL
    opening = event.opening if isinstance(event, SteeredLost) else event.epoch
    return Cause.LOST if opening is None else Cause.FAILED
