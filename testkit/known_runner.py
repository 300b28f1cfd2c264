"""The verifier of known text that runs its sessions."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from services.contract.frames import (
    DraftFrame,
    Grants,
    StepEnd,
    StepFrame,
    StepRow,
    draft_rows,
    granted,
    step_frame,
)
from services.contract.states import rows_a_message
from services.contract.types import Progress, WorkerDescription
from services.contract.worker_messages import (
    EndSession,
    SessionStarted,
    SetWindow,
    StartVerify,
    TextStates,
    VerifierCommand,
)
from services.runtime.host import Emit
from services.verifier.running.mailbox import Mailbox
from services.verifier.running.output import Output
from testkit.known_text import described, truth

_MOST_SAID = 254
"""Draft tokens of a step: their number and that of one more are a byte."""


class _Running:
    """One session: its output is what stands there already, and the truth behind it."""

    def __init__(self, opening: StartVerify) -> None:
        self.opening = opening
        self.output = Output([*opening.output], 0)
        self.mailbox = Mailbox(opening.first_drafts)
        self.limit, self.window = opening.limit, opening.window

    @property
    def ready(self) -> bool:
        """Whether it takes part in the next step."""
        return len(self.output) < min(self.limit, self.opening.sampling.max_tokens)

    def next(self) -> StepRow:
        """Keep what is right of a chain, and add the next token."""
        base = len(self.output)
        room = self.opening.sampling.max_tokens - base - 1
        taken = self.mailbox.first_tokens(min(self.window, _MOST_SAID), room)
        drafted = taken.tree.token_ids
        own = [truth(self.opening.seed, base + place) for place in range(len(drafted) + 1)]
        wrong = [place for place, token in enumerate(drafted) if token != own[place]]
        accepted = wrong[0] if wrong else len(drafted)
        said = tuple(own[: accepted + 1])
        self.output.extend(said)
        self.mailbox.follow(said)
        return StepRow(
            self.opening.handle,
            self.opening.opening,
            base,
            said,
            accepted,
            drafted,
            end=StepEnd.RECOVERED if wrong else StepEnd.BONUS,
            name=taken.name,
        )


class KnownRunner:
    """A `WorkerCore`: a step takes every session further that has credit.

    `step_ms`, `states`, `prompt`: as of `load_workers`.
    """

    def __init__(
        self, emit: Emit, worker_id: str, step_ms: float, states: int = 0, prompt: int = 0
    ) -> None:
        self._emit, self._pause = emit, 1e-3 * step_ms
        self._states, self._prompt = states, prompt
        self._about = described(worker_id, states)
        self._sessions: dict[tuple[int, int], _Running] = {}
        self._steps = 0

    @property
    def waiting(self) -> int:
        """Sessions that take part in the next step."""
        return sum(1 for session in self._sessions.values() if session.ready)

    def patience(self) -> float:
        """None."""
        return 0.0

    def handle(self, link: int, command: VerifierCommand, arrived: float) -> None:
        """Absorb one command."""
        match command:
            case StartVerify(handle, opening):
                self._sessions[link, handle] = _Running(command)
                self._emit(link, SessionStarted(handle, opening))
                if command.state_layers:
                    self._tell_prompt(link, handle, opening)
            case DraftFrame():
                for draft in draft_rows(command):
                    if (session := self._sessions.get((link, draft.handle))) is not None:
                        session.mailbox.put(draft, session.output, arrived)
            case Grants():
                for handle, limit in granted(command):
                    if (session := self._sessions.get((link, handle))) is not None:
                        session.limit = max(session.limit, limit)
            case SetWindow(handle, window):
                if (session := self._sessions.get((link, handle))) is not None:
                    session.window = window
            case EndSession(handle):
                self._sessions.pop((link, handle), None)

    def _tell_prompt(self, link: int, handle: int, opening: int) -> None:
        """As many rows as were asked for, as though the prompt were as long."""
        each = rows_a_message(self._states)
        for row in range(0, self._prompt, each):
            rows = self._rows(min(each, self._prompt - row))
            self._emit(link, TextStates(handle, opening, 0, rows))

    def _rows(self, count: int) -> bytes:
        return bytes(2 * self._states * count)

    def step(self) -> bool:
        """A step of every session that may have one, a frame for each link."""
        ready = [(link, own) for (link, _), own in self._sessions.items() if own.ready]
        if not ready:
            return False
        started_ns = time.time_ns()
        if self._pause:
            time.sleep(self._pause)
        self._steps += 1
        brought: defaultdict[int, list[StepRow]] = defaultdict(list)
        for link, session in ready:
            row = session.next()
            brought[link].append(row._replace(states=self._rows(len(row.tokens))))
        self._tell(brought, started_ns, len(ready))
        return True

    def _tell(
        self, brought: Mapping[int, Sequence[StepRow]], started_ns: int, sessions: int
    ) -> None:
        every = [row for rows in brought.values() for row in rows]
        rows = sessions + sum(len(row.judged) for row in every)
        took_ms = max(1e3 * self._pause, 0.01)
        frame = StepFrame(self._steps, started_ns, took_ms, sessions, rows)
        for link, own in brought.items():
            self._emit(link, step_frame(frame, own))

    def drop_link(self, link: int) -> None:
        """Forget its sessions."""
        kept = {key: session for key, session in self._sessions.items() if key[0] != link}
        self._sessions = kept

    def progress(self) -> Progress:
        """The load now."""
        return Progress(self._steps, len(self._sessions), self.waiting, 0, 1 << 30, 1.0)

    def describe(self) -> WorkerDescription:
        """What it is."""
        return self._about
