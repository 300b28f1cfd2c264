"""The verifier's core: blocks in, one forward for all sessions, verdicts out.

Decide (every block that fits, and a share of every prompt) → forward (one
packed pass) → absorb (the texts grow, the verdicts leave). Plain, synchronous,
single-threaded; `handle` never runs the model.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import assert_never

from torch import Tensor

from services.common.engine import Forwards
from services.common.steps import StepRecord
from services.common.types import (
    CloseVerify,
    FailureReason,
    OpenVerify,
    Progress,
    SessionFailed,
    VerifierCommand,
    VerifierEvent,
    Verify,
    VerifyOpened,
    WorkerDescription,
)
from services.verifier.admission import (
    Limits,
    Refusal,
    check_block,
    check_open,
    explain,
    open_matcher,
)
from services.verifier.batch import Part, Step, block_part, judged, prompt_part, step_entry
from services.verifier.description import describe
from services.verifier.gathering import Gathering
from services.verifier.judging import Decision, Judged, decide
from services.verifier.options import VerifierOptions
from services.verifier.scheduling import PrefillPace, share_prefill
from services.verifier.session import MOST_QUEUED, Block, Key, Task, VerifySession
from services.verifier.verdicts import decided, discarded, emitted, logprob_rows

Emit = Callable[[int, VerifierEvent], None]
"""(link number, event)."""


class VerifierCore:
    """Serves the sessions of all links with one engine.

    Nothing raises: what goes wrong becomes a `SessionFailed` of its session.
    """

    def __init__(
        self,
        engine: Forwards,
        *,
        emit: Emit,
        worker_id: str,
        options: VerifierOptions | None = None,
    ) -> None:
        self._options = options or VerifierOptions()
        self._engine = engine
        self._emit = emit
        self._worker_id = worker_id
        self._limits = Limits(engine.vocab_size, engine.max_context_length)
        self._sessions: dict[Key, VerifySession] = {}
        self._pace = PrefillPace(self._options.target_step_ms, self._options.max_step_tokens)
        self._gathering = Gathering(self._options.gather_ms)
        self._steps = 0
        self._turns = count(1)
        self._recent_ms: deque[float] = deque(maxlen=16)

    # --- commands ---------------------------------------------------------------

    def handle(self, link: int, command: VerifierCommand, arrived: float | None = None) -> None:
        """Absorb one command; no forward happens here. `arrived` None: now."""
        key = (link, command.session)
        arrived = self._options.clock() if arrived is None else arrived
        try:
            match command:
                case OpenVerify():
                    self._open(key, command, arrived)
                case Verify():
                    self._enqueue(key, command, arrived)
                case CloseVerify():
                    self._close(key)
                case _:
                    assert_never(command)
        except Exception as error:
            self._fail(key, getattr(command, "epoch", 0), error)

    def drop_link(self, link: int) -> None:
        """Free the sessions of a broken link, and only those."""
        for key in [key for key in self._sessions if key[0] == link]:
            self._close(key)

    def _open(self, key: Key, opening: OpenVerify, arrived: float) -> None:
        known = self._sessions.get(key)
        if known is not None and not known.replaced_by(opening):
            if known.opened and known.opening.epoch == opening.epoch:
                self._emit(key[0], VerifyOpened(opening.session, opening.epoch))
            return
        self._close(key)
        check_open(opening, self._limits)
        matcher = open_matcher(opening, self._options.structures)
        reserve = len(opening.prompt) + opening.sampling.max_tokens + opening.window
        cache = self._engine.new_cache(reserve)
        session = VerifySession(key[0], opening, cache, arrived, matcher)
        self._sessions[key] = session
        if self._options.lending is not None:
            session.offer = self._options.lending.offer(key[1], cache, session.text)
        self._note_prefilled(session)

    def _enqueue(self, key: Key, command: Verify, arrived: float) -> None:
        session = self._sessions.get(key)
        if session is None:
            raise Refusal(FailureReason.UNKNOWN_SESSION, "no such session on this link")
        if session.knows(command.round):
            self._answer_again(session, command)
            return
        check_block(command, session.opening.window, self._limits)
        if len(session.queue) >= MOST_QUEUED:
            raise Refusal(FailureReason.INVALID, f"more than {MOST_QUEUED} blocks wait")
        session.enqueue(Block(command, arrived))

    def _answer_again(self, session: VerifySession, command: Verify) -> None:
        if session.is_queued(command.round):
            return
        verdict = session.verdict(command.round) or discarded(session, command, 0.0)
        self._emit(session.key[0], verdict)

    def _close(self, key: Key) -> None:
        if (session := self._sessions.pop(key, None)) is not None:
            if self._options.lending is not None and session.offer is not None:
                self._options.lending.withdraw(key[1], session.offer)
            session.cache.free()

    # --- the step ---------------------------------------------------------------

    def patience(self) -> float:
        """Seconds to wait before the next step for sessions about to come back; 0 = none."""
        waiting = [own for own in self._sessions.values() if own.waits]
        blocks = sum(own.queue[0].rows for own in waiting if own.queue)
        full = blocks >= self._options.max_step_tokens
        if full or not waiting or len(waiting) == len(self._sessions):
            return self._gathering.idle()
        prompts = sum(own.prefill_left for own in waiting)
        rows = blocks + min(prompts, self._pace.room(blocks))
        away = [own.habit for own in self._sessions.values() if not own.waits]
        return self._gathering.patience(len(waiting), rows, away, self._options.clock())

    def step(self) -> bool:
        """One forward for every session with something to do; False = nothing to do."""
        blocks, discards = self._take_blocks()
        parts = blocks + self._take_prompts(sum(part.rows for part in blocks))
        if not parts:
            return discards > 0
        started, started_ns = self._options.clock(), time.time_ns()
        self._absorb(parts, started)
        self._measure(parts, started, started_ns)
        return True

    def _take_blocks(self) -> tuple[list[Part], int]:
        """At most one block per session; also how many were discarded.

        Whoever was served longest ago comes first, then whose block is oldest: chained
        blocks, which wait here while their session is served, gain it no larger share.
        """
        waiting = [own for own in self._sessions.values() if own.opened and own.queue]
        waiting.sort(key=lambda session: (session.served, session.queue[0].arrived))
        parts: list[Part] = []
        discards = used = 0
        for session in waiting:
            if used >= self._options.max_step_tokens:
                break
            task, skipped = self._next_task(session)
            session.served = next(self._turns)
            discards += skipped
            if task is not None:
                parts.append(block_part(session, task))
                used += len(task.tree) + 1
        return parts, discards

    def _next_task(self, session: VerifySession) -> tuple[Task | None, int]:
        """The first queued block that fits; those before it are answered as discarded."""
        skipped = 0
        while session.queue:
            block = session.queue.popleft()
            task = session.resolve(block)
            if task is not None:
                return task, skipped
            skipped += 1
            waited = (self._options.clock() - block.arrived) * 1e3
            self._emit(session.key[0], discarded(session, block.command, waited))
        return None, skipped

    def _take_prompts(self, used: int) -> list[Part]:
        waiting = [session for session in self._sessions.values() if session.prefill_left]
        left = [session.prefill_left for session in waiting]
        shares = share_prefill(left, self._pace.room(used))
        return [
            prompt_part(session, share)
            for session, share in zip(waiting, shares, strict=True)
            if share
        ]

    def _forward(self, parts: Sequence[Part]) -> list[Tensor | None]:
        """All parts in one pass or, if that fails, each alone; None for a failed one."""
        if not parts:
            return []
        try:
            return list(self._engine.forward([part.segment for part in parts if part.segment]))
        except Exception as error:
            if len(parts) == 1:
                self._fail_session(parts[0].session, error)
                return [None]
        return [result for part in parts for result in self._forward([part])]

    # --- the outcome ------------------------------------------------------------

    def _absorb(self, parts: Sequence[Part], started: float) -> None:
        fed = [part for part in parts if part.segment is not None]
        results = iter(self._forward(fed))
        blocks: list[Judged] = []
        step = Step.of(parts, started)
        for part in parts:
            logits = next(results) if part.segment is not None else None
            if part.segment is not None and logits is None:
                continue
            if part.task is not None:
                blocks.append(judged(part.session, part.task, logits))
            else:
                self._note_prefilled(part.session)
        for block, decision in zip(blocks, self._decide(blocks), strict=True):
            if isinstance(decision, Decision):
                self._conclude(block, decision, step)
            else:
                self._fail_session(block.session, decision)

    def _decide(self, blocks: Sequence[Judged]) -> Sequence[Decision | Exception]:
        """The decisions for all blocks together or, if that fails, for each alone."""
        try:
            return decide(blocks)
        except Exception as error:
            if len(blocks) == 1:
                return [error]
        return [decision for block in blocks for decision in self._decide([block])]

    def _conclude(self, block: Judged, decision: Decision, step: Step) -> None:
        session, task = block.session, block.task
        tokens = emitted(task, decision)
        try:
            leaf = block.logits[decision.leaf_row]
            session.commit(task, decision.path, decision.final_token, leaf)
            session.lend(block.ahead if decision.all_accepted else None)
            top = session.opening.sampling.logprobs
            logprobs = logprob_rows(block.logits, decision.path, tokens, top)
        except Exception as error:
            self._fail_session(session, error)
            return
        verdict = decided(session, task, decision)._replace(
            logprobs=logprobs,
            queue_ms=(step.started - task.block.arrived) * 1e3,
            verify_ms=(self._options.clock() - step.started) * 1e3,
            batch_size=step.sessions,
            batch_rows=step.rows,
        )
        session.store(verdict)
        self._emit(session.key[0], verdict)

    def _note_prefilled(self, session: VerifySession) -> None:
        if session.prefill_left == 0:
            session.opened = True
            took = (self._options.clock() - session.since) * 1e3
            opened = VerifyOpened(session.key[1], session.opening.epoch, prefill_ms=took)
            self._emit(session.key[0], opened)

    def _measure(self, parts: Sequence[Part], started: float, started_ns: int) -> None:
        ended = self._options.clock()
        took = (ended - started) * 1e3
        for part in parts:
            if part.session.opened:
                part.session.habit.answered(ended)
        rows = sum(part.rows for part in parts)
        self._gathering.stepped(rows, ended - started, ended)
        self._steps += 1
        self._recent_ms.append(took)
        if any(part.task is None for part in parts):
            self._pace.observe(rows, took)
        if self._options.on_step is not None:
            entries = tuple(step_entry(part, started) for part in parts)
            self._options.on_step(StepRecord(started_ns, time.time_ns(), entries))

    # --- failures ---------------------------------------------------------------

    def _fail_session(self, session: VerifySession, error: Exception) -> None:
        self._fail(session.key, session.opening.epoch, error)

    def _fail(self, key: Key, epoch: int, error: Exception) -> None:
        if (known := self._sessions.get(key)) is not None:
            epoch = known.opening.epoch
        self._close(key)
        reason, message = explain(error)
        self._emit(key[0], SessionFailed(key[1], reason, message, epoch))

    # --- what others see ----------------------------------------------------------

    def progress(self) -> Progress:
        """Steps so far and the load now; `queued_tokens` are rows waiting for a forward."""
        sessions = self._sessions.values()
        blocks = sum(1 + len(block.command.tree) for own in sessions for block in own.queue)
        return Progress(
            steps=self._steps,
            sessions=len(self._sessions),
            queued_tokens=blocks + sum(session.prefill_left for session in sessions),
            kv_tokens_used=self._engine.kv_tokens_used,
            kv_tokens_capacity=self._engine.kv_tokens_capacity,
            step_ms=sum(self._recent_ms) / max(1, len(self._recent_ms)),
        )

    def describe(self) -> WorkerDescription:
        """What this worker is."""
        structured = self._options.structures is not None
        return describe(self._engine, self._worker_id, self._options.version, structured)
