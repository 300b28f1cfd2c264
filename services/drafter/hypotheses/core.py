"""The drafter's core: steps come in, one level for all sessions, drafts go out.

Decide (which sessions have room) → draft (one call per method, all its sessions together) → absorb
(tails grow) → send (one frame for each link, when it is time). Plain, synchronous,
single-threaded; it knows no method and imports no torch.

When a frame leaves follows from counts, clocks and load, never from a token: after each level where
that takes a millisecond, else after two to four, and at once when no session has room left. Whoever
forwards frames reads them one by one: where they leave faster than that, each is later than the one
before. So in a crowd two levels leave together, and one frame behind each step that is heard of.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import assert_never

from services.contract.errors import Overloaded
from services.contract.frames import DraftRow, Numbers, StepFrame, draft_frame, unpack
from services.contract.states import OnStates, StateRows
from services.contract.types import FailureReason, OpenDraft, Progress, Role, WorkerDescription
from services.contract.worker_messages import (
    DrafterCommand,
    DrafterEvent,
    EndSession,
    SessionGone,
    SessionStarted,
    SetWindow,
    StartDraft,
    TextStates,
)
from services.drafter.anchors import Anchors, shape_of
from services.drafter.asking import by_drafter, idle, propose_each
from services.drafter.combined import Methods
from services.drafter.hypotheses.session import HypothesisSession
from services.drafter.protocol import Ask, Drafter, Proposed, SessionKey, total
from services.drafter.refusals import MOST_TEXT, check_open, told
from services.runtime.step_records import OnStep, StepEntry, StepRecord

Emit = Callable[[int, DrafterEvent], None]
"""(link number, event)."""

MOST_LEVELS = 4
"""Levels that a frame may hold together."""
CROWD_LEVELS = 2
"""And in a crowd, whose levels take long."""
FRAME_MS = 2.0
"""Of drafting in one frame: a frame costs CPU in three processes."""
AWAITED_MS = 0.5
"""Of a level, from which a draft's first token leaves alone."""
CROWD = 8
"""Sessions that are drafted for."""
LONGEST_WAIT = 0.01
"""Seconds between two frames of a crowd that no step comes between."""
_NEWEST = 0.125
"""Weight of the newest level in the mean of what levels take."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Entry:
    link: int
    handle: int
    key: SessionKey
    """Of the session at its method."""
    session_id: str
    session: HypothesisSession
    drafter: Drafter
    traceparent: str
    reserve: int


class HypothesisCore:
    """Serves the sessions of all links with one or more methods.

    `drafters`: methods by name; a session that names none gets the first, one that names several
    gets them together. `max_window` caps every session's window, `lengthen` is for several methods
    (see `combined`). `clock` is in nanoseconds. `on_step` is told of every call of a method,
    `on_states` of the target's states that come. Nothing raises: what goes wrong becomes its
    session's `SessionGone`. But the core does not start with methods that need different states.
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
        on_step: OnStep | None = None,
        on_states: OnStates | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._drafters = dict(drafters)
        self._methods = Methods(drafters, lengthen)
        self._emit = emit
        self._worker = WorkerDescription(worker_id, Role.DRAFTER, version=version)
        self._max_window = max_window
        self._anchors = Anchors(shape_of(drafters.values()), on_states)
        self._on_step = on_step
        self._clock = clock
        self._links: dict[int, dict[int, _Entry]] = {}
        self._unsent: dict[SessionKey, _Entry] = {}
        """Sessions that something was drafted for since a frame left."""
        self._levels = 0
        """Since then."""
        self._crowded = False
        self._heard = True
        """Whether a step came since a frame left."""
        self._sent_at = self._again = -math.inf
        """When a frame left, and when to look whether one may; in seconds."""
        self._level_ms = 0.0
        """What a level takes; 0 before the first."""
        self._reserved = 0
        self._steps = 0
        self._step_ms = 0.0
        self._recalled = 0

    # --- commands -------------------------------------------------------------

    def handle(self, link: int, command: DrafterCommand, _arrived: float = 0.0) -> None:
        """Absorb one command; no forward happens here."""
        self._again = -math.inf
        match command:
            case StepFrame():
                self._take(link, command)
            case StartDraft():
                self._start(link, command)
            case EndSession(handle):
                self._close(self._found(link, handle))
            case SetWindow(handle, window):
                if (entry := self._found(link, handle)) is not None:
                    entry.session.set_window(self._window(window))
            case TextStates(handle, _, position, states):
                self._anchor(self._found(link, handle), StateRows(position, states))
            case _:
                assert_never(command)

    def drop_link(self, link: int) -> None:
        """Free the sessions of a broken link, and only those."""
        for entry in list(self._links.get(link, {}).values()):
            self._close(entry)

    def _found(self, link: int, handle: int) -> _Entry | None:
        return self._links.get(link, {}).get(handle)

    def _start(self, link: int, start: StartDraft) -> None:
        known = self._found(link, start.handle)
        if known is not None and known.session.opening > start.opening:
            return
        if known is None or known.session.opening < start.opening:
            self._close(known)
            if refusal := self._methods.refusal(start.method, start.mode):
                self._say_gone(link, start, FailureReason.UNSUPPORTED, refusal)
                return
            try:
                self._admit(link, start)
            except Exception as error:
                self._say_gone(link, start, *told(error))
                return
        self._emit(link, SessionStarted(start.handle, start.opening))

    def _admit(self, link: int, start: StartDraft) -> None:
        session = HypothesisSession(start)
        session.set_window(self._window(start.window))
        opening = opened(start)
        check_open(opening)
        reserve = len(start.prompt) + start.sampling.max_tokens
        if self._reserved + reserve > MOST_TEXT:
            raise Overloaded(f"texts of {MOST_TEXT} tokens in all; {self._reserved} are taken")
        drafter = self._methods.find(start.method)
        assert drafter is not None
        key = (link, start.handle)
        drafter.open(key, opening)
        own = self._links.setdefault(link, {})
        own[start.handle] = _Entry(
            link,
            start.handle,
            key,
            start.session_id,
            session,
            drafter,
            start.traceparent,
            reserve,
        )
        self._reserved += reserve

    def _close(self, entry: _Entry | None) -> None:
        if entry is None:
            return
        own = self._links[entry.link]
        del own[entry.handle]
        if not own:
            del self._links[entry.link]
        self._unsent.pop(entry.key, None)
        self._reserved -= entry.reserve
        try:
            entry.drafter.close(entry.key)
        except Exception:
            _log.exception("closing a draft session failed")

    def _window(self, window: int) -> int:
        return max(0, min(window, self._max_window))

    # --- steps ----------------------------------------------------------------

    def _take(self, link: int, frame: StepFrame) -> None:
        """Take in what a step brought to the sessions that are here."""
        self._heard = True
        own, handles = self._links.get(link, {}), frame.every_handle()
        if own.keys().isdisjoint(handles):
            return
        positions, counts = unpack("I", frame.positions), frame.counts
        tokens, ends = unpack("I", frame.tokens), list(accumulate(counts))
        top_rows = dict(frame.top_rows)
        for index, handle in enumerate(handles):
            if (entry := own.get(handle)) is None:
                continue
            if frame.windows:
                entry.session.set_window(self._window(frame.windows[index]))
            said = tokens[ends[index] - counts[index] : ends[index]]
            self._follow(entry, positions[index], said, top_rows.get(index, b""))
        for index, rows in frame.states:
            said = tuple(tokens[ends[index] - counts[index] : ends[index]])
            if (entry := own.get(handles[index])) is not None:
                # A row of the token before each that the step brought.
                before = entry.session.prompt_length + positions[index] - 1
                self._anchor(entry, StateRows(before, rows, said))

    def _follow(self, entry: _Entry, position: int, tokens: Numbers, top_rows: bytes) -> None:
        before = len(entry.session.text)
        try:
            kept = entry.session.take(position, tokens, top_rows)
            if kept is not None and kept < before:
                entry.drafter.rewind(entry.key, kept)
        except Exception as error:
            self._fail(entry, error)

    def _anchor(self, entry: _Entry | None, rows: StateRows) -> None:
        """Give a method the states that came; late ones find no session."""
        given = entry is not None and self._anchors.give(
            entry.key, entry.session, entry.drafter, rows
        )
        if entry is None or given is None:
            self._anchors.drop(rows)
        elif given:
            entry.session.try_again()

    # --- a level --------------------------------------------------------------

    def patience(self) -> float:
        """None while there is something to draft; else until what was drafted may leave."""
        return max(0.0, self._again - self._now())

    def _now(self) -> float:
        return self._clock() / 1e9

    def step(self) -> bool:
        """One level for every session that has room; False = nothing to do."""
        everyone = self._everyone()
        self._crowded = sum(entry.session.window > 0 for entry in everyone) >= CROWD
        due = self._due()
        if not due:
            self._send_in_time()
            groups = by_drafter(everyone)
            return any(idle(drafter, map(_ask, group)) for drafter, group in groups) or self._rest()
        started = self._clock()
        if not sum(self._draft(*group) for group in by_drafter(due)):
            self._send_in_time()
            return self._rest()
        self._levels += 1
        self._steps += 1
        self._step_ms = (self._clock() - started) / 1e6
        if self._levels >= self._levels_a_frame() or self._awaited():
            self._send_in_time()
        return True

    def _rest(self) -> bool:
        """Nothing can be drafted before something comes; what is held back leaves in time."""
        if self._unsent:
            self._again = self._sent_at + LONGEST_WAIT
        return False

    def _send_in_time(self) -> None:
        """Let leave what has been drafted, at once or when a step comes."""
        if self._heard or not self._crowded or self._now() >= self._sent_at + LONGEST_WAIT:
            self._send()

    def _everyone(self) -> list[_Entry]:
        return [entry for own in self._links.values() for entry in own.values()]

    def _due(self) -> list[_Entry]:
        return [entry for entry in self._everyone() if entry.session.due]

    def _draft(self, drafter: Drafter, due: Sequence[_Entry]) -> bool:
        """One call of a method; False if all of its sessions wait for something else."""
        started = self._clock()
        proposals = propose_each(drafter, list(map(_ask, due)), self._fail_asked)
        elapsed = self._clock() - started
        pairs = zip(due, proposals, strict=True)
        served = [(entry, done) for entry, done in pairs if done and not done.waits]
        fed = False
        for entry, proposed in served:
            fed = fed or proposed.fed > 0
            # All of the level's time, however many sessions shared it: each of them waited for it.
            self._absorb(entry, proposed, 0.0 if proposed.fed else elapsed / 1e6)
        if not fed:
            self._measure(elapsed / 1e6)
        self._trace(elapsed, served)
        return len(served) > 0 or None in proposals

    def _absorb(self, entry: _Entry, proposed: Proposed, draft_ms: float) -> None:
        self._recalled += proposed.recalled
        self._unsent[entry.key] = entry
        if entry.session.absorb(proposed, draft_ms):
            # Nothing is added to a draft by itself: it leaves with this level.
            self._levels = MOST_LEVELS

    def _measure(self, ms: float) -> None:
        self._level_ms += (ms - self._level_ms) * (_NEWEST if self._level_ms else 1.0)

    def _levels_a_frame(self) -> int:
        """How many levels leave together."""
        if self._crowded:
            return CROWD_LEVELS
        levels = round(FRAME_MS / self._level_ms) if self._level_ms else 1
        return min(MOST_LEVELS, max(1, levels))

    def _awaited(self) -> bool:
        """Whether of some draft nothing has left yet: a verifier may have nothing of it."""
        alone = self._level_ms >= AWAITED_MS and not self._crowded
        return alone and any(entry.session.untold for entry in self._unsent.values())

    def _send(self) -> None:
        """What has been drafted leaves, in one frame for each link."""
        self._levels = 0
        if not self._unsent:
            return
        self._heard, self._sent_at = False, self._now()
        leaving: dict[int, list[DraftRow]] = {}
        for entry in self._unsent.values():
            if (row := entry.session.taken()) is not None:
                leaving.setdefault(entry.link, []).append(row)
        self._unsent.clear()
        for link, drafts in leaving.items():
            self._emit(link, draft_frame(drafts))

    def _trace(self, elapsed_ns: int, served: Sequence[tuple[_Entry, Proposed]]) -> None:
        if self._on_step is not None and served:
            ended = time.time_ns()
            entries = tuple([_step_entry(entry, proposed) for entry, proposed in served])
            self._on_step(StepRecord(ended - elapsed_ns, ended, entries))

    # --- failures -------------------------------------------------------------

    def _fail(self, entry: _Entry, error: Exception) -> None:
        self._close(entry)
        gone = SessionGone(entry.handle, entry.session.opening, *told(error))
        self._emit(entry.link, gone)

    def _fail_asked(self, ask: Ask, error: Exception) -> None:
        link, handle = ask.key
        if (entry := self._found(link, handle)) is not None:
            self._fail(entry, error)

    def _say_gone(self, link: int, start: StartDraft, reason: FailureReason, message: str) -> None:
        self._emit(link, SessionGone(start.handle, start.opening, reason, message))

    # --- what others see ------------------------------------------------------

    def progress(self) -> Progress:
        """Steps so far and the load now; `queued_tokens` are those that may be drafted."""
        kv = total([drafter.usage() for drafter in self._drafters.values()])
        return Progress(
            steps=self._steps,
            sessions=sum(map(len, self._links.values())),
            queued_tokens=sum([entry.session.room for entry in self._due()]),
            kv_tokens_used=kv.used,
            kv_tokens_capacity=kv.capacity,
            step_ms=self._step_ms,
            recalled_tokens=self._recalled,
            copied_tokens=kv.copied,
        )

    def describe(self) -> WorkerDescription:
        """What this worker is; bound to a model and tokenizer only where a method is."""
        return self._methods.describe(self._worker, self._anchors.shape)


def opened(start: StartDraft) -> OpenDraft:
    """What a method is told of a session."""
    return OpenDraft(
        prompt=start.prompt,
        output=start.output,
        mode=start.mode,
        sampling=start.sampling,
        seed=start.seed,
        num_candidates=start.num_candidates,
        method=start.method,
        vocab_size=start.vocab_size,
        phrase_scope=start.phrase_scope,
        top_rows=start.top_rows,
        fork_scope=start.fork_scope,
    )


def _ask(entry: _Entry) -> Ask:
    session, start = entry.session, entry.session.prompt_length
    known = start + session.committed_length
    return Ask(entry.key, session.key, session.text, start, known, session.room, session.top_rows)


def _step_entry(entry: _Entry, proposed: Proposed) -> StepEntry:
    kind, tokens = ("prefill", proposed.fed) if proposed.fed else ("draft", len(proposed.tree))
    return StepEntry(entry.session_id, kind, tokens, traceparent=entry.traceparent)
