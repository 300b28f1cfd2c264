"""The drafter's core: commands in, one drafting step for all sessions, drafts out.

Decide (which sessions owe drafts and have room) → draft (one call per method,
all its sessions together) → absorb (the text grows, the drafts leave). Plain,
synchronous, single-threaded; it knows no method and imports no torch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from services.contract.errors import NotFound, Overloaded
from services.contract.states import OnStates, StateRows
from services.contract.types import (
    HANDS_OVER,
    CloseDraft,
    CommitDraft,
    Credit,
    DrafterCommand,
    DrafterEvent,
    DraftOpened,
    DraftStates,
    FailureReason,
    OpenDraft,
    Progress,
    Role,
    SessionFailed,
    Verdict,
    WorkerDescription,
)
from services.drafter.anchors import Anchors, shape_of
from services.drafter.asking import by_drafter, idle, propose_each
from services.drafter.combined import Methods
from services.drafter.protocol import (
    Ask,
    Drafter,
    Proposed,
    SessionKey,
    states_needed,
    total,
)
from services.drafter.refusals import MOST_TEXT, check_open, told
from services.drafter.session import DraftSession
from services.runtime.step_records import OnStep, StepEntry, StepRecord
from services.runtime.tree_handover import Handover, StateExchange

Emit = Callable[[int, DrafterEvent], None]
"""(link number, event)."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Entry:
    key: SessionKey
    session: DraftSession
    drafter: Drafter
    traceparent: str
    reserve: int


class DrafterCore:
    """Serves the sessions of all links with one or more methods.

    `drafters`: methods by name; a session that names none gets the first, one that names
    several gets them together. `max_window` caps every session's window, `lengthen` is for
    several methods (see `combined`). `handover`: between it and a verifier in this process.
    `clock` is in nanoseconds. `on_step` is told of every call of a method, `on_states` of the
    target's states that come. Nothing raises: what goes wrong becomes its session's
    `SessionFailed`. But the core does not start with methods that need different states.
    """

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        *,
        emit: Emit,
        worker_id: str,
        version: str = "",
        max_window: int = 64,
        lengthen: int = 0,
        handover: Handover | None = None,
        on_step: OnStep | None = None,
        on_states: OnStates | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._drafters = dict(drafters)
        self._methods = Methods(drafters, lengthen)
        self._emit = emit
        self._worker = WorkerDescription(worker_id, Role.DRAFTER, version=version)
        self._max_window = max_window
        self._handover = handover
        self._anchors = Anchors(shape_of(drafters.values()), on_states)
        if handover is not None:
            handover.states.needed = self._anchors.shape
        self._on_step = on_step
        self._clock = clock
        self._entries: dict[SessionKey, _Entry] = {}
        self._reserved = 0
        self._steps = 0
        self._step_ms = 0.0
        self._recalled = 0

    # --- commands -------------------------------------------------------------

    def handle(self, link: int, command: DrafterCommand, _arrived: float = 0.0) -> None:
        """Absorb one command; no forward happens here."""
        key = (link, command.session)
        try:
            self._dispatch(key, command)
        except Exception as error:
            self._fail(key, getattr(command, "epoch", 0), error)

    def drop_link(self, link: int) -> None:
        """Free the sessions of a broken link, and only those."""
        for key in [key for key in self._entries if key[0] == link]:
            self._drop(key)

    def _dispatch(self, key: SessionKey, command: DrafterCommand) -> None:
        match command:
            case OpenDraft():
                self._open(key, command)
            case CommitDraft():
                self._commit(key, command)
            case CloseDraft():
                self._close(key)
            case Credit():
                if (entry := self._entries.get(key)) is not None:
                    entry.session.credit(self._window(command.window))
            case DraftStates(_, epoch, position, states):
                self._anchor(key, StateRows(epoch, position, states))
            case _:
                assert_never(command)

    def _open(self, key: SessionKey, opening: OpenDraft) -> None:
        known = self._entries.get(key)
        if known is not None and known.session.epoch > opening.epoch:
            return
        if known is None or known.session.epoch < opening.epoch:
            self._close(key)
            drafter = self._methods.find(opening.method)
            if refusal := self._methods.refusal(opening.method, opening.mode):
                self._refuse(key, opening, refusal)
                return
            assert drafter is not None
            self._admit(key, opening, drafter)
        self._emit(key[0], DraftOpened(opening.session, opening.epoch))

    def _admit(self, key: SessionKey, opening: OpenDraft, drafter: Drafter) -> None:
        check_open(opening)
        reserve = len(opening.prompt) + opening.sampling.max_tokens
        if self._reserved + reserve > MOST_TEXT:
            raise Overloaded(f"texts of {MOST_TEXT} tokens in all; {self._reserved} are taken")
        opening = replace(opening, window=self._window(opening.window))
        session = DraftSession(opening)
        drafter.open(key, opening)
        self._entries[key] = _Entry(key, session, drafter, opening.traceparent, reserve)
        self._reserved += reserve
        if self._handover is not None and states_needed(drafter).layers:
            self._handover.states.listening.add(key[1])

    def _commit(self, key: SessionKey, command: CommitDraft) -> None:
        entry = self._entries.get(key)
        if entry is None:
            raise NotFound(f"no draft session {command.session!r} on this link")
        before = len(entry.session.text)
        kept = entry.session.commit(command)
        if kept is not None and kept < before:
            entry.drafter.rewind(key, kept)
        if command.states:
            position = entry.session.prompt_length + command.base_len - 1
            tokens = command.token_ids
            self._anchor(key, StateRows(command.epoch, position, command.states, tokens))

    def _anchor(self, key: SessionKey, rows: StateRows) -> None:
        """Give a method the states that came over the wire; late ones find no session."""
        entry = self._entries.get(key)
        if entry is None or self._anchors.give(key, entry.session, entry.drafter, rows) is None:
            self._anchors.drop(rows)

    def _close(self, key: SessionKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._reserved -= entry.reserve
            if self._handover is not None:
                self._handover.forget(key[1])
                self._handover.states.listening.discard(key[1])
            entry.drafter.close(key)

    def _window(self, window: int) -> int:
        return max(0, min(window, self._max_window))

    # --- the step -------------------------------------------------------------

    def patience(self) -> float:
        """None: a draft is wanted as soon as it can be."""
        return 0.0

    def step(self) -> bool:
        """One drafting step for every session that owes drafts; False = nothing to do."""
        self._hear()
        due = [entry for entry in self._entries.values() if entry.session.drafting]
        if not due:
            held = by_drafter(self._entries.values())
            return any(idle(drafter, map(_ask, entries)) for drafter, entries in held)
        started = self._clock()
        if not sum(self._draft(drafter, entries) for drafter, entries in by_drafter(due)):
            return False
        self._steps += 1
        self._step_ms = (self._clock() - started) / 1e6
        return True

    def _hear(self) -> None:
        """Take in what the verifier beside decided since the last step.

        Of a session that two orchestrators have, the epoch tells whose it is.
        """
        heard: dict[str, list[Verdict]] = {}
        while self._handover is not None and self._handover.verdicts:
            verdict = self._handover.verdicts.popleft()
            heard.setdefault(verdict.session, []).append(verdict)
        if heard:
            for (_, name), entry in self._entries.items():
                for verdict in heard.get(name, ()):
                    entry.session.hear(verdict)
        if self._handover is not None and self._handover.states.listening:
            self._hear_states(self._handover.states)

    def _hear_states(self, exchange: StateExchange) -> None:
        """Take in the states that the verifier beside left; those of text to come wait there."""
        for key, entry in self._entries.items():
            for rows in exchange.take(key[1]):
                if self._anchors.give(key, entry.session, entry.drafter, rows) is None and not (
                    exchange.leave(key[1], rows)
                ):
                    self._anchors.drop(rows)

    def _draft(self, drafter: Drafter, due: Sequence[_Entry]) -> bool:
        """One call of a method; False if all of its sessions wait for something else."""
        ready = [entry for entry in due if entry.session.room > 0]
        for entry in due:
            if entry.session.room == 0:
                self._absorb(entry, Proposed(final=True), 0.0)
        if not ready:
            return True
        started = self._clock()
        proposals = propose_each(drafter, [_ask(entry) for entry in ready], self._fail_asked)
        elapsed = self._clock() - started
        pairs = zip(ready, proposals, strict=True)
        served = [(entry, done) for entry, done in pairs if done and not done.waits]
        for entry, proposed in served:
            # All of the step's time, however many sessions shared it: each of them waited for it.
            self._absorb(entry, proposed, 0.0 if proposed.fed else elapsed / 1e6)
        self._trace(elapsed, served)
        return len(served) > 0 or len(ready) < len(due) or None in proposals

    def _absorb(self, entry: _Entry, proposed: Proposed, draft_ms: float) -> None:
        self._recalled += proposed.recalled
        entry.session.top_rows = b""
        draft = entry.session.absorb(
            proposed.tree, proposed.final, draft_ms, proposed.reach, proposed.sources
        )
        if draft is None or (
            self._handover is not None and self._handover.leave(draft, entry.session.text)
        ):
            return
        self._emit(entry.key[0], draft)

    def _trace(self, elapsed_ns: int, served: Sequence[tuple[_Entry, Proposed]]) -> None:
        if self._on_step is not None and served:
            ended = time.time_ns()
            entries = tuple(_step_entry(entry, proposed) for entry, proposed in served)
            self._on_step(StepRecord(ended - elapsed_ns, ended, entries))

    # --- failures -------------------------------------------------------------

    def _refuse(self, key: SessionKey, opening: OpenDraft, refusal: str) -> None:
        reason = FailureReason.UNSUPPORTED
        self._emit(key[0], SessionFailed(opening.session, reason, refusal, opening.epoch))

    def _fail(self, key: SessionKey, epoch: int, error: Exception) -> None:
        self._drop(key)
        reason, message = told(error)
        self._emit(key[0], SessionFailed(key[1], reason, message, epoch))

    def _fail_asked(self, ask: Ask, error: Exception) -> None:
        self._fail(ask.key, ask.epoch, error)

    def _drop(self, key: SessionKey) -> None:
        try:
            self._close(key)
        except Exception:
            _log.exception("closing a draft session failed")

    # --- what others see ------------------------------------------------------

    def progress(self) -> Progress:
        """Steps so far and the load now; `queued_tokens` are those owed and not drafted."""
        kv = total([drafter.usage() for drafter in self._drafters.values()])
        sessions = [entry.session for entry in self._entries.values()]
        return Progress(
            steps=self._steps,
            sessions=len(sessions),
            queued_tokens=sum(session.room for session in sessions if session.drafting),
            kv_tokens_used=kv.used,
            kv_tokens_capacity=kv.capacity,
            step_ms=self._step_ms,
            recalled_tokens=self._recalled,
            copied_tokens=kv.copied,
        )

    def describe(self) -> WorkerDescription:
        """What this worker is; bound to a model and tokenizer only where a method is.

        Capabilities are those of its methods, and `hands_over`: see `Handover`.
        """
        able = (HANDS_OVER,) if self._handover is not None else ()
        return self._methods.describe(replace(self._worker, capabilities=able), self._anchors.shape)


def _ask(entry: _Entry) -> Ask:
    session = entry.session
    return Ask(
        key=entry.key,
        epoch=session.epoch,
        text=session.text,
        prompt_length=session.prompt_length,
        committed_length=session.prompt_length + session.committed_length,
        room=session.room,
        top_rows=session.top_rows,
    )


def _step_entry(entry: _Entry, proposed: Proposed) -> StepEntry:
    kind, tokens = ("prefill", proposed.fed) if proposed.fed else ("draft", len(proposed.tree))
    return StepEntry(entry.key[1], kind, tokens, traceparent=entry.traceparent)
