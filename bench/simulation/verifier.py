"""A verifier in simulated time: one forward at a time over all blocks that are ready.

The rules are those of `services.verifier` in mode `GREEDY`: at most one block a session and
step, oldest first; a block that does not fit the text is answered as discarded, without a
forward; a chained block fits if the one it extends was accepted whole, and it stands behind
the bonus, or begins with it, which is then taken off it; a tree is accepted down to the first
token that is not the target's own. Which sessions a step waits for (`services.verifier.gathering`)
and how much of which prompt it takes (`services.verifier.scheduling`) is decided by the served
code. Prompts without tokens take as long as a plain forward, and delay no other session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.simulation.agenda import Agenda, Device
from bench.simulation.chained import judged, overlap
from bench.simulation.ports import Deliver
from bench.simulation.scenario import Prompts, StepTime
from orchestrator.core.events import VerdictArrived, WorkerOpened
from services.contract.types import CloseVerify, OpenVerify, Role, Verdict, VerifierCommand, Verify
from services.verifier.gathering import Gathering, Habit
from services.verifier.scheduling import PrefillPace, share_prefill
from services.verifier.settings import VerifierSettings

MAX_STEP_ROWS = 512
SERVED = VerifierSettings.model_construct()
"""As it comes."""
WARM_STEPS = 40
WARM_ROWS = 64
INSTANT = 1e-9
"""Seconds: less is no wait."""


@dataclass(slots=True)
class _Session:
    """One session: its text is the first `length` tokens of the truth.

    `unread`: rows of its prompt that no forward has had; `read_at`: when the last one had.
    """

    name: str
    truth: Sequence[int]
    length: int
    epoch: int
    opened_at: float
    unread: int = 0
    read_at: float = 0.0
    habit: Habit = field(default_factory=Habit)
    queue: deque[tuple[float, Verify]] = field(default_factory=deque)
    last: Verdict | None = None
    answered_at: float = 0.0


@dataclass(frozen=True, slots=True)
class _Task:
    """What is left to verify of a block, after output[:base_len]."""

    session: _Session
    block: Verify
    base_len: int
    tokens: tuple[int, ...]
    ready: float


@dataclass(frozen=True, slots=True)
class _Batch:
    """What a forward takes: blocks of `rows` in all, and rows of prompts, by session."""

    tasks: list[_Task]
    rows: int
    prompts: list[tuple[_Session, int]]

    @property
    def prompt_rows(self) -> int:
        return sum(count for _, count in self.prompts)


class SimulatedVerifier:
    """One worker. `truths`: what the target says, per session; `deliver` answers.

    `device`: what computes its steps; None = one of its own. `gather_ms`: 0 = it waits for nobody.
    """

    def __init__(
        self, name: str, agenda: Agenda, times: StepTime, truths: dict[str, Sequence[int]],
        deliver: Deliver, *, device: Device | None = None, prompts: Prompts | None = None,
        gather_ms: float = 0.0,
    ) -> None:  # fmt: skip
        self.name = name
        self.forwards = 0
        self.busy_s = 0.0
        self._agenda, self._times, self._truths, self._deliver = agenda, times, truths, deliver
        self._device = device or Device(agenda)
        self._prompts = prompts or Prompts()
        self._gathering = Gathering(gather_ms)
        self._pace = PrefillPace(
            SERVED.target_step_ms, SERVED.max_step_tokens, SERVED.prefill_slowdown
        )
        self._sessions: dict[str, _Session] = {}
        self._working = self._planned = False
        if self._prompts.tokens:
            self._warm_up()

    def handle(self, command: VerifierCommand) -> None:
        """A command arrives. It is looked at now: a forward under way has its blocks already."""
        match command:
            case OpenVerify():
                self._open(command)
            case Verify():
                session = self._sessions[command.session]
                session.epoch = max(session.epoch, command.epoch)
                session.queue.append((self._agenda.now, command))
                session.habit.came(self._agenda.now, len(command.tree) + 1)
                self._go_on()
            case CloseVerify():
                self._sessions.pop(command.session, None)

    def _warm_up(self) -> None:
        """What a verifier that has run for a while has learned of steps and prompts."""
        rows = min(WARM_ROWS, self._prompts.tokens)
        for count in range(WARM_STEPS):
            sessions = 1 + count % 8
            self._gathering.stepped(sessions, 1e-3 * self._times.at(sessions, sessions), 0.0)
        took = self._times.at(1, 1) + self._prompts.row_ms * rows
        for _ in range(WARM_STEPS):
            self._pace.observe(1 + rows, rows, took, self._gathering.line)

    def _open(self, command: OpenVerify) -> None:
        name, now = command.session, self._agenda.now
        session = _Session(name, self._truths[name], len(command.committed), command.epoch, now)
        self._sessions[name] = session
        session.unread = self._prompts.of(int(name)) if self._prompts.tokens else 0
        if session.unread:
            self._go_on()
        else:
            self._agenda.after(self._times.at(1, 1), self._tell_opened, session)

    def _tell_opened(self, session: _Session) -> None:
        self._deliver(session.name, WorkerOpened, Role.VERIFIER, self.name, session.epoch)

    # --- the step -------------------------------------------------------------

    def _go_on(self) -> None:
        """Begin a step after everything else that happens in this moment."""
        if not (self._working or self._planned):
            self._planned = True
            self._agenda.after(0.0, self._step)

    def _step(self) -> None:
        self._planned = False
        if self._working:
            return
        if (patience := self._patience()) > INSTANT:
            self._agenda.at(self._agenda.now + patience, self._go_on)
            return
        batch = self._take()
        if not (batch.tasks or batch.prompts):
            return
        took = self._times.at(max(1, len(batch.tasks)), max(1, batch.rows))
        took += self._prompts.row_ms * batch.prompt_rows
        self._working = True
        self.forwards += 1
        self.busy_s += 1e-3 * took
        self._device.run(took, self._conclude, batch, self._device.free_from)

    def _patience(self) -> float:
        """Seconds to wait for sessions that are about to come back."""
        present = self._sessions.values()
        waiting = [one for one in present if one.queue or one.unread]
        rows = sum(len(one.queue[0][1].tree) + 1 for one in waiting if one.queue and not one.unread)
        if not waiting or len(waiting) == len(present) or rows >= MAX_STEP_ROWS:
            return self._gathering.idle()
        unread = sum(one.unread for one in waiting)
        more = min(unread, self._prompt_room(rows, ())) if unread else 0
        away = [one.habit for one in present if not (one.queue or one.unread)]
        now = self._agenda.now
        return self._gathering.patience(len(waiting), rows + more, away, now, blocks=rows > 0)

    def _take(self) -> _Batch:
        waiting = [one for one in self._sessions.values() if one.queue and not one.unread]
        waiting.sort(key=lambda session: session.queue[0][0])
        batch, rows = _Batch([], 0, []), 0
        for session in waiting:
            if rows >= MAX_STEP_ROWS:
                break
            if (task := self._next(session)) is not None:
                batch.tasks.append(task)
                rows += len(task.tokens) + 1
        return self._with_prompts(batch.tasks, rows)

    def _with_prompts(self, tasks: list[_Task], rows: int) -> _Batch:
        """Beside these blocks shares of prompts; whose prompt ends takes its first block along."""
        unread = [one for one in self._sessions.values() if one.unread]
        if not unread:
            return _Batch(tasks, rows, [])
        room = self._prompt_room(rows, [task.session for task in tasks])
        shares = share_prefill([one.unread for one in unread], room)
        parts = [(one, share) for one, share in zip(unread, shares, strict=True) if share]
        for session, share in parts:
            session.unread -= share
            if not session.unread and (task := self._next(session)) is not None:
                tasks.append(task)
                rows += len(task.tokens) + 1
        return _Batch(tasks, rows, parts)

    def _prompt_room(self, rows: int, served: Sequence[_Session]) -> int:
        """Rows of prompts for a step beside blocks of `rows`, of the sessions `served`."""
        every, now = self._sessions.values(), self._agenda.now
        unread = [one for one in every if one.unread]
        came = min(one.opened_at for one in unread)
        before = [one for one in every if not one.unread and one.read_at < came]
        decoding = sum(
            bool(one.queue) or one.habit.expected(now) or any(one is other for other in served)
            for one in before
        )
        if not decoding:
            return self._pace.room(rows)
        return self._pace.room(rows, self._gathering.line, len(unread) / decoding)

    def _next(self, session: _Session) -> _Task | None:
        while session.queue:
            arrived, block = session.queue.popleft()
            skip = overlap(block, session.last, session.length)
            if skip is not None and block.epoch >= session.epoch:
                tokens = block.tree.token_ids[skip:]
                ready = max(arrived, session.answered_at)
                return _Task(session, block, block.base_len + skip, tokens, ready)
            waited = 1e3 * (self._agenda.now - arrived)
            verdict = Verdict(
                block.session, block.epoch, block.round, block.base_len,
                discarded=True, queue_ms=waited,
            )  # fmt: skip
            self._deliver(block.session, VerdictArrived, self.name, verdict)
        return None

    def _conclude(self, batch: _Batch, started: float) -> None:
        self._learn(batch)
        for session, _ in batch.prompts:
            if not session.unread:
                session.read_at = self._agenda.now
                self._tell_opened(session)
        for task in batch.tasks:
            verdict = self._judged(task, started)._replace(
                batch_size=len(batch.tasks), batch_rows=batch.rows
            )
            task.session.last, task.session.answered_at = verdict, self._agenda.now
            task.session.length = verdict.base_len + len(verdict.token_ids)
            task.session.habit.answered(self._agenda.now)
            self._deliver(task.block.session, VerdictArrived, self.name, verdict)
        self._working = False
        self._step()

    def _learn(self, batch: _Batch) -> None:
        """What a step takes, prompts in it and without."""
        took = self._times.at(max(1, len(batch.tasks)), max(1, batch.rows))
        took += self._prompts.row_ms * batch.prompt_rows
        rows = batch.rows + batch.prompt_rows
        if batch.prompts:
            self._pace.observe(rows, batch.prompt_rows, took, self._gathering.line)
        self._gathering.stepped(rows, 1e-3 * took, self._agenda.now, batch.prompt_rows)

    def _judged(self, task: _Task, started: float) -> Verdict:
        base = task.base_len
        own = task.session.truth[base : base + len(task.tokens) + 1]
        return judged(task.block, base, task.tokens, own)._replace(
            queue_ms=1e3 * (started - task.ready),
            verify_ms=1e3 * (self._agenda.now - started),
        )
