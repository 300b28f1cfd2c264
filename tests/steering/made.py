"""A steered session with both workers, led step by step."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.steering import events, machine
from orchestrator.steering.config import FindStop, Limits, SessionConfig
from orchestrator.steering.ports import StepFacts, Taken
from orchestrator.steering.state import State, new_session
from services.contract import types as t
from services.contract.frames import DraftName, StepEnd, StepRow
from services.contract.states import NO_STATES, StateShape
from services.contract.worker_messages import StartDraft, StartVerify

HANDLE = 9
PROMPT = (7,)


@dataclass
class Made:
    """What is done to it can be written in a chain."""

    mode: t.VerifyMode = t.VerifyMode.GREEDY
    window: int = 4
    method: str = "model"
    num_candidates: int = 1
    sampling: t.ResolvedSampling = field(default_factory=lambda: t.ResolvedSampling(max_tokens=99))
    states: StateShape = NO_STATES
    find_stop: FindStop | None = None
    committed: tuple[int, ...] = ()
    actions: list[events.Action] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = SessionConfig(
            "s", PROMPT, self.mode, self.sampling, seed=1, method=self.method,
            window=self.window, num_candidates=self.num_candidates, vocab_size=100,
            states=self.states, find_stop=self.find_stop, limits=Limits(drafter_backoff=0.0),
        )  # fmt: skip
        self.state: State = new_session(config, HANDLE, self.committed)
        self.feed(events.Begin(0.0))

    def feed(self, event: events.Event) -> Made:
        self.state, actions = machine.step(self.state, event)
        self.actions += actions
        return self

    def attach(
        self, role: t.Role, name: str, at: float = 0.0, ready_s: float = 0.0, local=()
    ) -> Made:
        return self.feed(events.WorkerAttached(at, role, name, ready_s, local))

    def start(self, role: t.Role, name: str, at: float = 0.0, local=()) -> Made:
        self.attach(role, name, at, local=local)
        return self.started(role, name, at)

    def started(self, role: t.Role, name: str, at: float = 0.0) -> Made:
        attached = self.state.verifier if role is t.Role.VERIFIER else self.state.drafter
        assert attached is not None
        return self.feed(events.Started(at, role, name, attached.opening))

    def serve(self, at: float = 0.0, local=()) -> Made:
        self.start(t.Role.VERIFIER, "v", at, local)
        return self.start(t.Role.DRAFTER, "d", at) if self.state.drafters_method else self

    def row(self, *tokens: int, accepted: int = 0, **more) -> StepRow:
        """A step behind all that was received."""
        verifier = self.state.verifier
        more.setdefault("opening", verifier.opening if verifier else 0)
        more.setdefault("position", len(self.state.committed))
        more.setdefault("judged", tokens[:accepted])
        if more["judged"]:
            more.setdefault("name", DraftName(1, 0))
        return StepRow(HANDLE, tokens=tokens, accepted=accepted, **more)

    def rows(
        self, *rows: StepRow, at: float = 0.0, worker: str = "v", step_ms: float = 6.0
    ) -> Made:
        facts = StepFacts(1, step_ms=step_ms, sessions=3, rows=5, heard_at=at)
        taken = tuple(Taken(row, facts) for row in rows)
        return self.feed(events.StepsTaken(at, worker, taken, lag_s=0.001))

    def take(self, *tokens: int, at: float = 0.0, accepted: int = 0, **more) -> Made:
        return self.rows(self.row(*tokens, accepted=accepted, **more), at=at)

    def stored(self, at: float = 0.0) -> Made:
        """The store has what is on its way to it."""
        assert self.state.storing is not None
        return self.feed(events.Persisted(at, self.state.storing.record.round))

    def lose(
        self, at: float = 0.0, role: t.Role = t.Role.VERIFIER, why: str = "why", **how
    ) -> Made:
        attached = self.state.verifier if role is t.Role.VERIFIER else self.state.drafter
        name = attached.worker if attached else "nobody"
        return self.feed(events.WorkerLost(at, role, name, why, **how))

    def refuse(self, at: float = 0.0, role: t.Role = t.Role.VERIFIER, why="why", **how) -> Made:
        attached = self.state.verifier if role is t.Role.VERIFIER else self.state.drafter
        assert attached is not None
        return self.lose(at, role, why, opening=attached.opening, **how)

    def performed(self, kind: type) -> list:
        return [action for action in self.actions if isinstance(action, kind)]

    def verifies(self) -> list[StartVerify]:
        started = [action.message for action in self.performed(events.Start)]
        return [message for message in started if isinstance(message, StartVerify)]

    def drafts(self) -> list[StartDraft]:
        started = [action.message for action in self.performed(events.Start)]
        return [message for message in started if isinstance(message, StartDraft)]


RECOVERED, BONUS, NONE = StepEnd.RECOVERED, StepEnd.BONUS, StepEnd.NONE
