"""The verifier's core: blocks in, one forward for all sessions, verdicts out.

Decide (every block that fits, and a share of every prompt) → forward (one
packed pass) → absorb (the texts grow, the verdicts leave). Plain, synchronous,
single-threaded; `handle` never runs the model.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count
from typing import NamedTuple, TypeVar, assert_never

from torch import Tensor

from services.contract.errors import out_of_memory
from services.contract.types import (
    CloseVerify,
    FailureReason,
    LogprobRow,
    OpenVerify,
    Progress,
    PromptScores,
    SessionFailed,
    TakenDraft,
    Verdict,
    VerifierCommand,
    VerifierEvent,
    Verify,
    VerifyOpened,
    WorkerDescription,
)
from services.engine.port import Capability, Engine
from services.engine.sampling import rounding
from services.grammar.spending import SLICE
from services.runtime.step_records import StepRecord
from services.scheduling.turns import exchange
from services.verifier.batch import (
    Decision,
    Judged,
    Part,
    Step,
    block_part,
    check_block,
    decide,
    judged,
    last_part,
    prompt_part,
    step_entries,
)
from services.verifier.caches import Caches
from services.verifier.description import describe
from services.verifier.fed_text import by_seniority
from services.verifier.forms import FormTime, crowded
from services.verifier.gathering import Gathering
from services.verifier.options import VerifierOptions
from services.verifier.refusals import (
    Limits,
    Refusal,
    ask_form,
    check_open,
    check_tree,
    explain,
    open_matcher,
)
from services.verifier.rows import logprob_rows, told_rows
from services.verifier.scheduling import PrefillPace, share_prefill
from services.verifier.scores import most_rows, score_rows, within
from services.verifier.session import MOST_QUEUED, VerifySession
from services.verifier.state_telling import StateTeller, after
from services.verifier.types import Block, Key, Task
from services.verifier.verdicts import decided, discarded, emitted

MOST_REST = 0.25
"""Seconds after which whoever rests looks again who else is there."""
FOLLOWING = 5e-3
"""Seconds before a step for texts that are followed to their forms."""
PREFIX_SHARE = 0.5
"""Of the K/V budget, unless told otherwise: what texts that ended may hold at most."""

T = TypeVar("T")


class Fed(NamedTuple):
    """What a forward gives of a part: logits, and states of all its tokens where they are told."""

    logits: Tensor | None
    states: Tensor | None = None


NOTHING_FED = Fed(None)

Emit = Callable[[int, VerifierEvent], None]
"""(link number, event)."""


class VerifierCore:
    """Serves the sessions of all links with one engine.

    Nothing raises: what goes wrong becomes a `SessionFailed` of its session. Where memory
    runs out, texts that ended go first, and what failed is tried once more.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        emit: Emit,
        worker_id: str,
        options: VerifierOptions | None = None,
    ) -> None:
        self._options = options or VerifierOptions()
        self._engine = engine
        self._emit = emit
        self._worker_id = worker_id
        self._rounding = rounding(engine.dtype)
        self._limits = Limits(
            engine.vocab_size,
            engine.max_context_length,
            trees=Capability.TREES in engine.capabilities,
        )
        self._sessions: dict[Key, VerifySession] = {}
        self._pace = PrefillPace(
            self._options.target_step_ms,
            self._options.max_step_tokens,
            self._options.prefill_slowdown,
        )
        self._gathering = Gathering(self._options.gather_ms)
        self._form_time = FormTime()
        lending = self._options.lending
        self._handover = None if lending is None else lending.handover
        self._steps = 0
        self._turns, self._numbers = count(1), count(1)
        self._caches = Caches(
            engine, self._prefix_tokens(), self._options.lending, self._options.on_preempt
        )
        self._states = StateTeller(
            engine,
            emit,
            None if self._handover is None else self._handover.states,
            self._options.on_states,
        )
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
                    self._caches.release(key)
                case _:
                    assert_never(command)
        except Exception as error:
            self._fail(key, getattr(command, "epoch", 0), error)

    def drop_link(self, link: int) -> None:
        """Free the sessions of a broken link, and only those."""
        for key in [key for key in self._sessions if key[0] == link]:
            self._close(key)
        self._caches.drop_link(link)

    def _open(self, key: Key, opening: OpenVerify, arrived: float) -> None:
        known = self._sessions.get(key)
        if known is not None and not known.replaced_by(opening):
            if known.opened and known.opening.epoch == opening.epoch:
                self._emit(key[0], VerifyOpened(opening.session, opening.epoch))
            return
        self._close(key)
        check_open(opening, opening.committed, self._limits)
        form = ask_form(opening, self._options.structures, str(key[0]))
        session = VerifySession(key[0], opening, arrived, form, next(self._numbers))
        self._spared(partial(self._caches.open, session))
        self._sessions[key] = session
        self._states.open(session)
        # A text that is to be followed first waits for a step.
        (self._note_prefilled if opening.committed else self._take_form)(session)

    def _take_form(self, session: VerifySession) -> None:
        """Go on with the form, where that is there; it may turn out to be none."""
        form, structures = session.form, self._options.structures
        if form is not None and form.done and structures is not None:
            try:
                if session.matcher is None:
                    session.matcher = open_matcher(session.opening, form, structures)
                followed = session.follow_text(SLICE)
            except Exception as error:
                self._fail_session(session, error)
                return
            self._form_time.took(session, self._options.clock())
            if not followed:
                return
            session.form = None
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
        if command.allowance is not None:
            self._expect_draft(session)
        session.enqueue(Block(command, arrived))

    def _expect_draft(self, session: VerifySession) -> None:
        """One more block of it takes what is drafted in this process."""
        if self._handover is None or not session.opening.mode.exact_match:
            raise Refusal(FailureReason.INVALID, "allowance: nobody here drafts what it may take")
        self._handover.expect(session.key[1])

    def _answer_again(self, session: VerifySession, command: Verify) -> None:
        if session.is_queued(command.round):
            return
        verdict = session.verdict(command.round) or discarded(session, command, 0.0)
        self._emit(session.key[0], verdict)

    def _close(self, key: Key, *, sound: bool = True) -> None:
        if (session := self._sessions.pop(key, None)) is not None:
            self._states.close(session)
            self._caches.close(session, sound=sound)
            if self._handover is not None:
                self._handover.forget(key[1])

    def _prefix_tokens(self) -> int:
        wanted = self._options.prefix_cache_tokens
        return int(PREFIX_SHARE * self._engine.kv_tokens_capacity) if wanted is None else wanted

    # --- the step ---------------------------------------------------------------

    def patience(self) -> float:
        """Seconds to wait before the next step for sessions about to come back; 0 = none."""
        every, now = self._sessions.values(), self._options.clock()
        rest = self._form_time.rest(every, now)
        present = [own for own in every if not (own.preempted or (rest and own.rests))]
        waiting = [own for own in present if own.waits]
        if rest and not waiting and any(own.rests for own in every):
            return min(rest, MOST_REST)
        queued = [own.queue[0].rows for own in waiting if own.ready]
        blocks = sum(queued)
        full = blocks >= self._options.max_step_tokens
        if full or not waiting or len(waiting) == len(present):
            return self._gathering.idle()
        prompts = sum(own.prefill_left for own in waiting)
        rows = blocks
        if prompts:
            rows += min(prompts, self._prompt_room(blocks))
        away = [own.habit for own in present if not own.waits]
        return self._gathering.patience(len(waiting), rows, away, now, blocks=bool(queued))

    def step(self) -> bool:
        """One forward for every session with something to do; False = nothing to do."""
        self._prepare()
        blocks, discards = self._take_blocks()
        parts = blocks + self._take_prompts(blocks)
        if not parts:
            return discards > 0 or bool(self._followers())
        started, started_ns = self._options.clock(), time.time_ns()
        self._absorb(parts, started)
        self._measure(parts, started, started_ns)
        return True

    def _prepare(self) -> None:
        """Go on with what came meanwhile: forms, room for preempted sessions, shared beginnings."""
        until = self._options.clock() + FOLLOWING
        for follower in self._followers():
            self._take_form(follower)
            if self._options.clock() > until:
                break
        while (session := self._caches.to_bring_back(self._sessions.values())) is not None:
            self._at_its_cost(session, partial(self._caches.open, session))
            if not session.preempted:
                self._note_prefilled(session)
        self._settle()

    def _followers(self) -> list[VerifySession]:
        """Whose texts may be followed to their forms now; whose was least comes first."""
        rest = self._rest()
        found = [own for own in self._sessions.values() if own.form is not None and own.form.done]
        found = [own for own in found if not (rest and own.heavy)]
        return sorted(found, key=lambda own: own.matcher.spending.seconds if own.matcher else 0.0)

    def _rest(self) -> bool:
        """Whether sessions with heavy forms leave the time to others."""
        return self._form_time.rest(self._sessions.values(), self._options.clock()) > 0

    def _settle(self) -> None:
        """Copy what other sessions were fed first, where that is there."""
        for session in list(self._sessions.values()):
            shared = session.shared
            if shared is not None and shared.waits and self._at_its_cost(session, shared.settle):
                session.forget_unscored()
                self._note_prefilled(session)

    def _take_blocks(self) -> tuple[list[Part], int]:
        """At most one block per session; also how many were discarded.

        Whoever was served longest ago comes first, then whose block is oldest: chained
        blocks, which wait here while their session is served, gain it no larger share. Within
        a tenant's turns priorities decide.
        """
        waiting = [own for own in self._sessions.values() if own.ready]
        waiting.sort(key=lambda session: (session.served, session.queue[0].arrived))
        waiting = exchange(waiting, lambda session: session.block_claim, "served")
        alone = not crowded(self._sessions.values(), self._options.clock())
        rest = self._rest()
        parts: list[Part] = []
        busy: set[VerifySession] = set()
        discards = used = 0
        for session in waiting:
            if used >= self._options.max_step_tokens:
                break
            if rest and session.heavy:
                continue
            # One that was served before may have needed the room.
            if session.preempted or not self._has_room(session, busy):
                continue
            task, skipped = self._next_task(session)
            self._note_turn(session)
            discards += skipped
            if task is not None:
                parts.append(block_part(session, task))
                busy.add(session)
                used += len(task.tree) + 1
                rest = rest or (session.heavy and not alone)
        return parts, discards

    def _next_task(self, session: VerifySession) -> tuple[Task | None, int]:
        """The first queued block that fits; those before it are answered as discarded."""
        skipped = 0
        while session.queue:
            block = self._with_draft(session, session.queue.popleft())
            task = session.resolve(block)
            if task is not None:
                return task, skipped
            skipped += 1
            waited = (self._options.clock() - block.arrived) * 1e3
            self._emit(session.key[0], discarded(session, block.command, waited))
        return None, skipped

    def _with_draft(self, session: VerifySession, block: Block) -> Block:
        """The block, with what it may take of the draft that is ready in this process."""
        allowance = block.command.allowance
        if allowance is None or block.taken is not None or self._handover is None:
            return block
        most = session.opening.window
        taken = self._handover.take(session.key[1], session.text, allowance, most)
        filled = session.with_draft(block, taken)
        try:
            check_tree(filled.command.tree, most, self._limits)
        except Refusal:
            return session.with_draft(block, TakenDraft())
        return filled

    def _has_room(self, session: VerifySession, busy: set[VerifySession]) -> bool:
        """Whether a session's next block fits its K/V; others may have to give way for it."""
        room = partial(self._caches.room, session, self._sessions.values(), busy)
        return self._at_its_cost(session, room) or False

    def _take_prompts(self, blocks: Sequence[Part]) -> list[Part]:
        """Shares of prompts, beside these blocks."""
        waiting = by_seniority(own for own in self._sessions.values() if own.feeds)
        if not waiting:
            return []
        left = [session.prefill_left for session in waiting]
        room = self._prompt_room(
            sum(part.rows for part in blocks), {part.session for part in blocks}
        )
        most = most_rows(self._engine.vocab_size)
        shares = within(waiting, share_prefill(left, room), most)
        return [
            self._prompt(session, share)
            for session, share in zip(waiting, shares, strict=True)
            if share
        ]

    def _prompt(self, session: VerifySession, share: int) -> Part:
        """A share of a prompt; if that is the last one, with the block that waits for it."""
        if share < session.prefill_left or not session.takes_block or session.heavy:
            return prompt_part(session, share)
        task, _ = self._next_task(session)
        if task is None:
            return prompt_part(session, share)
        if task.tree.parents is not None:
            session.queue.appendleft(task.block)
            return prompt_part(session, share)
        self._note_turn(session)
        return last_part(session, share, task)

    def _note_turn(self, session: VerifySession) -> None:
        session.served, session.served_in = next(self._turns), self._steps

    def _prompt_room(self, used: int, served: Collection[VerifySession] = ()) -> int:
        """Prompt tokens for a step that verifies `used` rows, of `served` sessions."""
        now, every = self._options.clock(), self._sessions.values()
        feeding = [own.since for own in every if own.feeds]
        came = min(feeding, default=now)
        before = [own for own in every if own.filled_at < came]
        decoding = sum(own in served or own.ready or own.habit.expected(now) for own in before)
        if not decoding:
            return self._pace.room(used)
        return self._pace.room(used, self._gathering.line, len(feeding) / decoding)

    def _forward(self, parts: Sequence[Part]) -> list[Fed | None]:
        """All parts in one pass or, if that fails, each alone; None for a failed one."""
        if not parts:
            return []
        segments = [part.segment for part in parts if part.segment]
        if any(part.session.telling is not None for part in parts):
            found = self._states.forward(segments)
            if found is not None:
                return [Fed(*rows) for rows in zip(*found, strict=True)]
        try:
            return [Fed(logits) for logits in self._engine.forward(segments)]
        except Exception as error:
            if out_of_memory(error) and self._caches.relieve():
                return self._forward(parts)
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
            found = next(results) if part.segment is not None else NOTHING_FED
            if found is None:
                continue
            states = found.states if part.session.telling is not None else None
            if part.prompt:
                if states is not None:
                    self._states.prompt(part, states)
                self._fed(part, found.logits)
            if part.task is None:
                continue
            states = None if states is None else states[part.prompt :]
            block = self._at_its_cost(
                part.session, partial(judged, part.session, part.task, found.logits, states)
            )
            if block is not None:
                blocks.append(block)
        decisions = self._decide(blocks)
        step = replace(step, forms=sum(part.session.form_seconds for part in parts))
        rows = self._states.decided(blocks, decisions)
        for block, decision in zip(blocks, decisions, strict=True):
            if isinstance(decision, Decision):
                self._conclude(block, decision, step, rows.get(id(block), b""))
            else:
                self._fail_session(block.session, decision)

    def _fed(self, part: Part, logits: Tensor | None) -> None:
        """A share of a prompt is in K/V: tell what its rows say, where that was asked for."""
        session = part.session
        if session.scoring and logits is not None and len(logits):
            rows = self._at_its_cost(session, partial(score_rows, session, logits))
            if rows is None:
                return
            link, name = session.key
            self._emit(link, PromptScores(name, session.opening.epoch, session.scored, rows))
            session.scored += len(rows)
        self._note_prefilled(session)

    def _decide(self, blocks: Sequence[Judged]) -> Sequence[Decision | Exception]:
        """The decisions for all blocks together or, if that fails, for each alone."""
        try:
            return self._spared(partial(decide, blocks, self._rounding))
        except Exception as error:
            if len(blocks) == 1:
                return [error]
        return [decision for block in blocks for decision in self._decide([block])]

    def _conclude(self, block: Judged, decision: Decision, step: Step, states: bytes) -> None:
        session, task = block.session, block.task
        try:
            # What takes memory comes first, so that it can be tried again.
            leaf, logprobs, told = self._spared(partial(_kept_rows, block, decision))
            state = self._spared(partial(after, session, block, decision))
            self._spared(partial(session.keep_path, task, decision.path))
            session.commit(task, decision.path, decision.final_token, leaf, state)
            followed = decision.all_accepted and decision.final_token is not None
            session.lend(block.ahead if followed else None)
        except Exception as error:
            self._fail_session(session, error)
            return
        verdict = decided(session, task, decision)._replace(
            logprobs=logprobs,
            top_rows=told,
            queue_ms=session.queued_ms(task.block, step.started),
            verify_ms=max(0.0, self._options.clock() - step.started - step.forms) * 1e3,
            batch_size=step.sessions,
            batch_rows=step.rows,
        )
        session.store(verdict)
        self._count(verdict)
        self._emit(session.key[0], self._states.verdict(session, verdict, states))
        if self._handover is not None:
            self._handover.verdicts.append(verdict)

    def _count(self, verdict: Verdict) -> None:
        told = self._options.on_choices
        if told is not None and verdict.mode.exact_match:
            told(verdict.mode.name.lower(), len(verdict.token_ids), verdict.near_ties)

    def _note_prefilled(self, session: VerifySession) -> None:
        shared = session.shared
        if session.prefill_left > 0 or shared is None or shared.waits:
            return
        session.fill(self._options.clock())
        if session.opened or session.form is not None:
            return
        session.opened = True
        took = (self._options.clock() - session.since) * 1e3
        cached = min(shared.cached, session.most_cached)
        opened = VerifyOpened(session.key[1], session.opening.epoch, cached, took)
        self._emit(session.key[0], opened)
        if session.opening.score_from:
            self._settle()
            self._caches.hold(session)
            self._close(session.key)

    def _measure(self, parts: Sequence[Part], started: float, started_ns: int) -> None:
        ended = self._options.clock()
        # What forms took says nothing of rows: nobody is to learn from it.
        forms = sum(self._form_time.took(part.session, ended) for part in parts)
        seconds = max(0.0, ended - started - forms)
        took = seconds * 1e3
        for part in parts:
            if part.session.opened:
                part.session.answered(ended)
        rows = sum(part.rows for part in parts)
        prompts = sum(part.prompt for part in parts)
        if prompts:
            self._pace.observe(rows, prompts, took, self._gathering.line)
        self._gathering.stepped(rows, seconds, ended, prompts)
        self._steps += 1
        self._recent_ms.append(took)
        if self._options.on_step is not None:
            entries = tuple(chain.from_iterable(step_entries(part, started) for part in parts))
            self._options.on_step(StepRecord(started_ns, time.time_ns(), entries))

    # --- failures ---------------------------------------------------------------

    def _spared(self, act: Callable[[], T]) -> T:
        """What `act` gives; where memory runs out, once more without the texts that ended.

        Where it raises, `act` has changed nothing.
        """
        try:
            return act()
        except Exception as error:
            if not out_of_memory(error) or not self._caches.relieve():
                raise
        return act()

    def _at_its_cost(self, session: VerifySession, act: Callable[[], T]) -> T | None:
        """The same for one session; where that raises, the session fails and no other: None."""
        try:
            return self._spared(act)
        except Exception as error:
            self._fail_session(session, error)
            return None

    def _fail_session(self, session: VerifySession, error: Exception) -> None:
        self._fail(session.key, session.opening.epoch, error)

    def _fail(self, key: Key, epoch: int, error: Exception) -> None:
        if (known := self._sessions.get(key)) is not None:
            epoch = known.opening.epoch
        self._close(key, sound=False)
        reason, message = explain(error)
        self._emit(key[0], SessionFailed(key[1], reason, message, epoch))

    # --- what others see ----------------------------------------------------------

    def progress(self) -> Progress:
        """Steps so far and the load now; `queued_tokens` are rows waiting for a forward."""
        sessions = self._sessions.values()
        waiting = (own.queue for own in sessions if own.form is None)
        blocks = sum(1 + len(block.command.tree) for queue in waiting for block in queue)
        return Progress(
            steps=self._steps,
            sessions=len(self._sessions),
            queued_tokens=blocks + sum(session.prefill_left for session in sessions),
            kv_tokens_used=self._engine.kv_tokens_used,
            kv_tokens_capacity=self._engine.kv_tokens_capacity,
            step_ms=sum(self._recent_ms) / max(1, len(self._recent_ms)),
            kv_tokens_spare=self._engine.kv_tokens_spare,
        )

    def describe(self) -> WorkerDescription:
        """What this worker is."""
        structured = self._options.structures is not None
        return describe(self._engine, self._worker_id, self._options.version, structured)


def _kept_rows(
    block: Judged, decision: Decision
) -> tuple[Tensor | None, tuple[LogprobRow, ...], bytes]:
    """The logits [V] that are retained, where no token follows, the logprobs and rows asked for."""
    leaf = block.logits[decision.leaf_row].clone() if decision.final_token is None else None
    top = block.session.opening.sampling.logprobs
    tokens = emitted(block.task, decision)
    logprobs = logprob_rows(block.logits, decision.path, tokens, top)
    opening, last = block.session.opening, block.session.text[-1]
    return leaf, logprobs, told_rows(opening, last, block.task.tree, block.logits)
