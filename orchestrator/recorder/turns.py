"""What counters and spans get of a steered session: a pass over each commit's rounds."""

from __future__ import annotations

from orchestrator.recorder.known import Known
from orchestrator.recorder.meters import Meters
from orchestrator.steering.config import Phase
from orchestrator.steering.events import (
    Action,
    Emit,
    Event,
    Finish,
    Persist,
    Persisted,
    Release,
    Start,
    Started,
    StatesTold,
    StepsTaken,
    Suspend,
    Waited,
    WorkerLost,
)
from orchestrator.steering.ports import Taken
from orchestrator.steering.rounds import Commit, RoundRecord
from orchestrator.steering.state import State
from services.contract.states import Fate
from services.contract.types import Origin, Role
from services.runtime.telemetry.names import Cause, Fallback, RoundOutcome


class Turns:
    """Feeds the meters, and the spans of sessions that have some."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters

    def hear(self, known: Known, event: Event, before: State) -> None:
        """What happened, to the session as it was before."""
        match event:
            case StepsTaken(_, _, taken):
                self._took(known, taken)
                if before.config.states.layers:
                    self._meters.states(Fate.RECEIVED, sum(len(one.row.states) for one in taken))
            case Persisted():
                for round in [waiting for waiting in known.storing if waiting <= event.round]:
                    self._meters.store_seconds.record(event.at - known.storing.pop(round))
                if known.spans is not None:
                    known.spans.stored(event.round, event.at)
            case Waited(_, _, reason):
                known.waits = reason
            case StatesTold():
                self._meters.states(Fate.RECEIVED, len(event.states.states))
            case Started(at, role, worker, opening, cached):
                if role is Role.VERIFIER:
                    if known.reading is not None and known.reading[:2] == (worker, opening):
                        self._has_read(known, cached, at)
                elif known.spans is not None:
                    known.spans.opened(role, worker, opening, cached, at)
            case WorkerLost(at, role, worker) if known.spans is not None:
                attached = before.verifier if role is Role.VERIFIER else before.drafter
                known.spans.released(role, at)
                if attached is not None and attached.worker == worker:
                    known.spans.lost(role, worker, _cause(event), at)
            case _:
                pass

    def _took(self, known: Known, taken: tuple[Taken, ...]) -> None:
        known.waits = None
        known.begun = True
        # Of the last steps all workers are released.
        known.fallback = _fallback(known)
        known.drafted = len(taken[-1].row.judged)
        for one in taken:
            if one.window is not None:
                known.window = one.window

    def _has_read(self, known: Known, cached: int, at: float) -> None:
        """A verifier has the session's text, of which it found so many tokens."""
        assert known.reading is not None
        worker, opening, tokens = known.reading
        known.reading = None
        self._meters.prefilled(tokens, min(cached, tokens))
        if known.spans is not None:
            known.spans.opened(Role.VERIFIER, worker, opening, cached, at)

    def _released(self, known: Known, release: Release, at: float) -> None:
        """Whose first steps were its last ones says no more what it found."""
        if release.role is Role.VERIFIER and known.reading is not None and known.begun:
            self._has_read(known, 0, at)
        if known.spans is not None:
            known.spans.released(release.role, at)
            if known.state is not None and known.state.phase is Phase.RUNNING:
                known.spans.lost(release.role, release.worker, Cause.FAILED, at)

    def see(self, known: Known, action: Action, at: float) -> None:
        """What the session asks for, or has come to."""
        match action:
            case Persist(commit):
                self._conclude(known, commit, at)
            case Emit(commit):
                self._emitted(known, len(commit.token_ids), at)
            case Start():
                self._opening(known, action, at)
            case Release():
                self._released(known, action, at)
            case Finish(ending):
                known.finish = ending.reason.name.lower()
            case Suspend(reason):
                known.finish, known.error = "suspended", reason.name.lower()
            case _:
                pass

    def _emitted(self, known: Known, tokens: int, at: float) -> None:
        """Tokens went to the client."""
        if tokens and not known.emitted:
            known.first_at = at
            self._meters.first_token.record(at - known.started_at)
        known.emitted += tokens
        known.last_at = at

    def _conclude(self, known: Known, commit: Commit, at: float) -> None:
        meters, spans = self._meters, known.spans
        known.storing[commit.record.round] = at
        for record, outcome in _outcomes(commit):
            plain = "" if record.draft_tokens else known.fallback
            if plain:
                meters.fallbacks.add(1, plain)
            known.totals.add(record)
            known.near_ties += record.near_ties
            meters.round(record, outcome)
            if spans is not None:
                spans.judged(record, outcome, plain)
        if spans is not None:
            spans.storing(commit.record, at)

    def _opening(self, known: Known, start: Start, at: float) -> None:
        role, message = start.role, start.message
        known.window = known.waits = None
        tokens = len(message.prompt) + len(message.output)
        if role is Role.VERIFIER:
            known.reading, known.begun = (start.worker, message.opening, tokens), False
        if role in known.opened:
            self._meters.migrations.add(1, role.value)
        known.opened.add(role)
        if known.spans is not None:
            known.spans.opening(role, start.worker, message.opening, tokens, at)


def _fallback(known: Known) -> str:
    """Why a round holds no draft."""
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


def _cause(event: WorkerLost) -> str:
    """Why a session lost a worker: one word of a fixed set, none of the worker's own."""
    if event.fatal:
        return Cause.REFUSED
    if event.busy:
        return Cause.FULL
    return Cause.LOST if event.opening is None else Cause.FAILED


def _outcomes(commit: Commit) -> list[tuple[RoundRecord, str]]:
    """The rounds of a commit, and how each came out."""
    found, end = [], 0
    for record in commit.records:
        end += record.emitted_tokens
        bonus = 0 < end <= len(commit.origins) and commit.origins[end - 1] is Origin.BONUS
        found.append((record, _outcome(record, bonus)))
    return found


def _outcome(record: RoundRecord, bonus: bool) -> str:
    if record.draft_tokens == 0:
        return RoundOutcome.PLAIN
    if record.accepted_tokens == 0:
        return RoundOutcome.REJECTED_ALL
    # In a tree a whole path counts as all, though other branches fell away.
    whole = bonus or record.accepted_tokens == record.draft_tokens
    return RoundOutcome.ACCEPTED_ALL if whole else RoundOutcome.PARTIAL
