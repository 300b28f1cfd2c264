"""The core of a verifier that runs its sessions.

Decide (whose turn it is, with what draft, and a share of every prompt) → forward (one packed pass)
→ hear (what came meanwhile) → absorb (the texts grow, a frame a link leaves). Plain, synchronous,
single-threaded; `handle` never runs the model.

What a step decided leaves before anything of its session can fail. Credit is looked at before a
step, and cuts nothing of what was judged. A session that gives its K/V up keeps text and mailbox.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import assert_never

from torch import Tensor

from services.contract.errors import out_of_memory
from services.contract.frames import DraftFrame, Grants, StepFrame, draft_rows, granted
from services.contract.types import Progress, WorkerDescription
from services.contract.worker_messages import (
    EndSession,
    SetDraftedFor,
    SetWindow,
    StartVerify,
    VerifierCommand,
)
from services.engine.port import Capability, Engine
from services.engine.sampling import rounding
from services.runtime.proposer import Proposer
from services.runtime.step_records import StepRecord
from services.scheduling.draft_budget import DraftBudget
from services.scheduling.offers import Pacing
from services.verifier.description import describe
from services.verifier.forms import FormTime, MasksAside
from services.verifier.options import VerifierOptions
from services.verifier.refusals import Limits
from services.verifier.running.choosing import Choosing
from services.verifier.running.drafting import Drafting
from services.verifier.running.outcome import Outcome
from services.verifier.running.own_drafts import OwnDrafts
from services.verifier.running.pace import StepPace
from services.verifier.running.reading import Reading
from services.verifier.running.sessions import Emit, Sessions
from services.verifier.running.telling import stood_out, who_waits
from services.verifier.running.turns import Turn

MOST_REST = 0.25
"""Seconds after which whoever rests looks again, and tells who waits."""


class RunningCore:
    """Runs the sessions of all links with one engine.

    Nothing raises: what goes wrong becomes a `SessionGone` of its session; see `sessions`.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        emit: Emit,
        worker_id: str,
        options: VerifierOptions | None = None,
        pacing: Pacing | None = None,
        proposer: Proposer | None = None,
        absorb: Callable[[], object] | None = None,
    ) -> None:
        """`absorb` hands in, by `handle`, what has arrived; it is called behind each forward.

        `pacing`: the policy; left out: the adaptive one, to which no step times are told.
        """
        options, pacing = options or VerifierOptions(), pacing or DraftBudget()
        trees = Capability.TREES in engine.capabilities
        limits = Limits(engine.vocab_size, engine.max_context_length, trees)
        self._options, self._engine, self._emit = options, engine, emit
        self._worker_id = worker_id
        self._absorb_commands = absorb
        self._form_time, self._pace = FormTime(), StepPace(options)
        self._masks = MasksAside(options.clock)
        self._drafting = Drafting(pacing, limits, options.clock)
        self._own_drafts = own = OwnDrafts(proposer, pacing, options.clock)
        self._sessions = Sessions(engine, emit, options, limits, self._drafting, own)
        self._reading = Reading(self._sessions, own, emit, self._form_time, options)
        self._choosing = Choosing(
            self._sessions,
            self._drafting,
            own,
            self._form_time,
            self._pace,
            engine.vocab_size,
            options,
        )
        self._outcome = Outcome(
            self._sessions, self._drafting, own, emit, rounding(engine.dtype), options
        )
        self._steps = 0
        self._again = -math.inf
        """When to look again, if nothing comes before; in seconds."""
        self._report_at = -math.inf

    # --- commands ---------------------------------------------------------------

    def handle(self, link: int, command: VerifierCommand, arrived: float | None = None) -> None:
        """Absorb one command; no forward happens here. `arrived` None: now."""
        arrived = self._options.clock() if arrived is None else arrived
        self._again = -math.inf
        every = self._sessions.every
        match command:
            case DraftFrame():
                self._take_drafts(link, command, arrived)
            case Grants():
                for handle, limit in granted(command):
                    if (session := every.get((link, handle))) is not None:
                        session.grant(limit, arrived)
            case StartVerify():
                if (session := self._sessions.start(link, command, arrived)) is not None:
                    self._reading.begin(session)
            case EndSession(handle):
                self._sessions.end((link, handle))
            case SetWindow(handle, window):
                if (session := every.get((link, handle))) is not None:
                    session.window = min(window, session.opening.window)
                    # Its drafter has been given another, too.
                    session.told_window = None
            case SetDraftedFor(handle, drafted_for):
                if (session := every.get((link, handle))) is not None:
                    session.drafted_for = drafted_for
                    # One that comes is to hear how far to be ahead.
                    session.told_window = None
            case _:
                assert_never(command)

    def _take_drafts(self, link: int, frame: DraftFrame, arrived: float) -> None:
        for draft in draft_rows(frame):
            session = self._sessions.every.get((link, draft.handle))
            if session is not None:
                take = partial(self._drafting.take, session, draft, arrived)
                self._sessions.at_its_cost(session, take)

    def drop_link(self, link: int) -> None:
        """Free the sessions of a broken link, and only those."""
        self._again = -math.inf
        self._sessions.drop_link(link)

    # --- the step ---------------------------------------------------------------

    def patience(self) -> float:
        """Seconds to rest where nothing can be done before something comes; 0 = look now."""
        now, every = self._options.clock(), self._sessions.every
        if every and now >= self._report_at:
            self._report_at = now + MOST_REST
            for link, waiting in who_waits(every.values()).items():
                self._emit(link, waiting)
        if now >= self._again or self._reading.followers():
            return 0.0
        return self._again - now

    def step(self) -> bool:
        """One forward for every session with something to do; False = nothing to do."""
        self._reading.prepare()
        began = self._options.clock()
        turns = self._choosing.turns(self._steps + 1)
        if not turns:
            return self._rest_awhile()
        started, started_ns = self._options.clock(), time.time_ns()
        self._steps += 1
        self._masks.begin(turn.session for turn in turns if turn.verifies)
        computed = self._forward(turns)
        self._sessions.in_step = {turn.session: turn for turn, *_ in computed if turn.verifies}
        self._feed(computed)
        if self._absorb_commands is not None:
            self._absorb_commands()
        saved = self._masks.end()
        took_ms = self._conclude(turns, started, started_ns, saved)
        extra = sum(turn.rows for turn in turns) - len(turns)
        if not any(turn.prompt for turn in turns):
            # What its drafts took that were made in it counts, too.
            self._drafting.stepped(len(turns), extra, 1e3 * (started - began) + took_ms)
        self._pace.observe(turns, took_ms)
        return True

    def _rest_awhile(self) -> bool:
        """Nothing can be in a step: draft ahead, or rest until something comes."""
        every = self._sessions.every.values()
        if self._reading.followers() or self._own_drafts.ahead(every):
            return True
        if every:
            now = self._options.clock()
            held = [own.ready_since + own.hold_s for own in every if own.held]
            self._again = min([now + MOST_REST, *[until for until in held if until > now]])
        return False

    def _forward(self, turns: Sequence[Turn]) -> list[tuple[Turn, Tensor, Tensor | None]]:
        """All turns in one pass or, if that fails, each alone; without those that failed."""
        segments = [turn.segment for turn in turns]
        if any(turn.session.telling is not None for turn in turns):
            found = self._sessions.states.forward(segments)
            if found is not None:
                return list(zip(turns, *found, strict=True))
        try:
            logits = self._engine.forward(segments)
        except Exception as error:
            if out_of_memory(error) and self._sessions.caches.relieve():
                return self._forward(turns)
            if len(turns) == 1:
                self._sessions.fail(turns[0].session, error)
                return []
            return [result for turn in turns for result in self._forward([turn])]
        return [(turn, own, None) for turn, own in zip(turns, logits, strict=True)]

    def _feed(self, computed: Sequence[tuple[Turn, Tensor, Tensor | None]]) -> None:
        """What was computed, where it belongs; shares of prompts are in K/V."""
        for turn, logits, states in computed:
            own = states if turn.session.telling is not None else None
            if turn.prompt:
                self._reading.fed(turn, logits, own)
            if turn.verifies:
                turn.tell(logits, own)

    def _conclude(
        self, turns: Sequence[Turn], started: float, started_ns: int, saved: float
    ) -> float:
        """Let texts grow, and tell of it; the milliseconds of the step, without its forms.

        `saved`: seconds that those took beside the forward, and nobody waited for.
        """
        in_step, self._sessions.in_step = self._sessions.in_step, {}
        judged = [turn for turn in turns if turn.verifies and turn.session in in_step]
        brought = self._outcome.grow(judged, started)
        ended = self._options.clock()
        forms = sum(self._form_time.took(turn.session, ended) for turn in turns)
        took_ms = 1e3 * max(0.0, ended - started - (forms - saved))
        rows = sum(turn.rows for turn in turns)
        frame = StepFrame(self._steps, started_ns, took_ms, len(turns), rows)
        stood = stood_out(self._sessions.every.values(), self._steps)
        self._outcome.tell(frame, brought, stood)
        if self._options.on_step is not None:
            entries = tuple(chain.from_iterable(turn.entries(started) for turn in turns))
            every = tuple(map(sum, zip(*stood.values(), strict=True)))
            dropped = self._drafting.dropped.since_last()
            self._options.on_step(StepRecord(started_ns, time.time_ns(), entries, every, dropped))
        return took_ms

    # --- what others see ----------------------------------------------------------

    def progress(self) -> Progress:
        """Steps so far and the load now; `queued_tokens` are tokens of prompts that wait."""
        every = self._sessions.every.values()
        return Progress(
            steps=self._steps,
            sessions=len(every),
            queued_tokens=sum([own.prefill_left for own in every]),
            kv_tokens_used=self._engine.kv_tokens_used,
            kv_tokens_capacity=self._engine.kv_tokens_capacity,
            step_ms=self._pace.step_ms,
            recalled_tokens=self._own_drafts.recalled_tokens,
            kv_tokens_spare=self._engine.kv_tokens_spare,
        )

    def describe(self) -> WorkerDescription:
        """What this worker is."""
        structured = self._options.structures is not None
        own = describe(self._engine, self._worker_id, self._options.version, structured)
        return replace(
            own,
            capabilities=(*own.capabilities, *self._own_drafts.capabilities),
        )
