"""A verifier in simulated time: one forward at a time over all blocks that are ready.

The rules are those of `services.verifier` in mode `GREEDY`: at most one block a session and
step, oldest first; a block that does not fit the text is answered as discarded, without a
forward; a chained block fits if the one it extends was accepted whole, and it stands behind
the bonus, or begins with it, which is then taken off it; a tree is accepted down to the first
token that is not the target's own. A prefill takes as long as a plain forward, and delays no
other session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.simulation.agenda import Agenda
from bench.simulation.chained import judged, overlap
from bench.simulation.ports import Deliver
from bench.simulation.scenario import StepTime
from orchestrator.core.events import VerdictArrived, WorkerOpened
from services.contract.types import CloseVerify, OpenVerify, Role, Verdict, VerifierCommand, Verify

MAX_STEP_ROWS = 512


@dataclass(slots=True)
class _Session:
    """One session: its text is the first `length` tokens of the truth."""

    truth: Sequence[int]
    length: int
    epoch: int
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


class SimulatedVerifier:
    """One worker. `truths`: what the target says, per session; `deliver` answers."""

    def __init__(
        self, name: str, agenda: Agenda, times: StepTime, truths: dict[str, Sequence[int]],
        deliver: Deliver,
    ) -> None:  # fmt: skip
        self.name = name
        self.forwards = 0
        self.busy_s = 0.0
        self._agenda, self._times, self._truths, self._deliver = agenda, times, truths, deliver
        self._sessions: dict[str, _Session] = {}
        self._working = False

    def handle(self, command: VerifierCommand) -> None:
        """A command arrives. It is looked at now: a forward under way has its blocks already."""
        match command:
            case OpenVerify():
                truth = self._truths[command.session]
                self._sessions[command.session] = _Session(
                    truth, len(command.committed), command.epoch
                )
                opened = (command.session, WorkerOpened, Role.VERIFIER, self.name, command.epoch)
                self._agenda.after(self._times.at(1, 1), self._deliver, *opened)
            case Verify():
                session = self._sessions[command.session]
                session.epoch = max(session.epoch, command.epoch)
                session.queue.append((self._agenda.now, command))
                self._go_on()
            case CloseVerify():
                self._sessions.pop(command.session, None)

    def _go_on(self) -> None:
        """Begin a step after everything else that happens in this moment."""
        if not self._working:
            self._working = True
            self._agenda.after(0.0, self._step)

    def _step(self) -> None:
        tasks, rows = self._take()
        if not tasks:
            self._working = False
            return
        took = self._times.at(len(tasks), rows)
        self.forwards += 1
        self.busy_s += 1e-3 * took
        self._agenda.after(took, self._conclude, tasks, rows, self._agenda.now)

    def _take(self) -> tuple[list[_Task], int]:
        waiting = [session for session in self._sessions.values() if session.queue]
        waiting.sort(key=lambda session: session.queue[0][0])
        tasks, rows = [], 0
        for session in waiting:
            if rows >= MAX_STEP_ROWS:
                break
            if (task := self._next(session)) is not None:
                tasks.append(task)
                rows += len(task.tokens) + 1
        return tasks, rows

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

    def _conclude(self, tasks: Sequence[_Task], rows: int, started: float) -> None:
        for task in tasks:
            verdict = self._judged(task, started)._replace(batch_size=len(tasks), batch_rows=rows)
            task.session.last, task.session.answered_at = verdict, self._agenda.now
            task.session.length = verdict.base_len + len(verdict.token_ids)
            self._deliver(task.block.session, VerdictArrived, self.name, verdict)
        self._step()

    def _judged(self, task: _Task, started: float) -> Verdict:
        base = task.base_len
        own = task.session.truth[base : base + len(task.tokens) + 1]
        return judged(task.block, base, task.tokens, own)._replace(
            queue_ms=1e3 * (started - task.ready),
            verify_ms=1e3 * (self._agenda.now - started),
        )
