"""One session in simulated time: the served round machine, and what its actions lead to."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bench.simulation.round_kinds import RoundKind, kind_of
from orchestrator.core import rounds
from orchestrator.core.events import (
    Action,
    Begin,
    Commit,
    Emit,
    Event,
    Finish,
    NeedWorker,
    OpenOnWorker,
    Persist,
    Release,
    SendToDrafter,
    SendVerify,
    Suspend,
    Tick,
    WorkerAttached,
)
from orchestrator.core.state import State
from services.contract.types import DrafterCommand, Role, VerifierCommand

Turn = tuple[Event, tuple[Action, ...]]
FOREVER = 1e9
"""Seconds: deadlines beyond are none."""


class Surroundings(Protocol):
    """What a session is in."""

    @property
    def now(self) -> float:
        """Seconds."""

    def place(self, role: Role, session: str) -> str:
        """The worker that takes the session."""

    def send(self, worker: str, command: VerifierCommand | DrafterCommand) -> None:
        """Over the worker's link."""

    def close(self, role: Role, worker: str, session: str) -> None:
        """Over the worker's link."""

    def persist(self, heard: Callable[..., None], round_: int) -> None:
        """Have `heard(Persisted, round)` called when it is stored."""

    def tick(self, at: float, call: Callable[[int], None], number: int) -> None:
        """Have `call(number)` called at a time."""

    def ended(self, session: SimulatedSession) -> None:
        """It is over."""


@dataclass(slots=True)
class Account:
    """What a session took. Times in seconds."""

    asked: float = 0.0
    began: float = 0.0
    opened: float = 0.0
    first: float = 0.0
    finished: float = 0.0
    tokens: int = 0
    rounds: int = 0
    sent: int = 0
    accepted: int = 0
    verify_ms: float = 0.0
    turns: list[Turn] | None = None
    blocks: list[tuple[int, int]] = field(default_factory=list)
    """Of every round: draft tokens sent, and accepted."""
    kinds: Counter[RoundKind] = field(default_factory=Counter)
    """Rounds but those that went with the opening."""
    waited_ms: float = 0.0
    """The free verifier stood idle for drafts."""
    first_verify_ms: float = 0.0
    """The verifier's, for the round that brought the first token."""

    @property
    def seconds(self) -> float:
        """From the verifier being ready to the last token."""
        return self.finished - self.opened

    @property
    def first_ms(self) -> float:
        """From being asked for to the first token."""
        return 1e3 * (self.first - self.asked)

    @property
    def decode_ms(self) -> float:
        """From the first token to the last."""
        return 1e3 * (self.finished - self.first)

    @property
    def token_ms(self) -> float:
        """For each token after the first, of two or more."""
        return self.decode_ms / (self.tokens - 1)

    @property
    def outside_ms(self) -> float:
        """Of these, those in which the verifier computed nothing for the session."""
        return self.decode_ms - (self.verify_ms - self.first_verify_ms)


class SimulatedSession:
    """Feeds events to the machine, and does what it asks for."""

    def __init__(
        self, state: State, truth: Sequence[int], world: Surroundings, *, record: bool = False
    ) -> None:
        self.name = state.config.session
        self.beginning = self.state = state
        self.account = Account(turns=[] if record else None)
        self._truth, self._world = truth, world
        self._inbox: deque[Event] = deque()
        self._draining = False
        self._tick_at: float | None = None
        self._ticks = 0

    def begin(self) -> None:
        """Look for workers."""
        self.account.began = self._world.now
        self.hear(Begin)

    def hear(self, kind: Callable[..., Event], *what: object) -> None:
        """Absorb the event `kind(now, *what)`, and whatever its actions bring up."""
        self._inbox.append(kind(self._world.now, *what))
        if self._draining:
            return
        self._draining = True
        while self._inbox:
            self._turn(self._inbox.popleft())
        self._draining = False
        self._set_tick()

    def _turn(self, event: Event) -> None:
        before = self.state
        waited = before.verifier is None or not before.verifier.opened
        self.state, actions = rounds.step(before, event)
        if self.account.turns is not None:
            self.account.turns.append((event, actions))
        if waited and self.state.verifier is not None and self.state.verifier.opened:
            self.account.opened = self._world.now
        for action in actions:
            if isinstance(action, SendVerify):
                self._count(action, event, before)
            self._perform(action)

    def _count(self, sent: SendVerify, event: Event, before: State) -> None:
        """Note why a block left as it did."""
        blocks = self.state.in_flight
        block = next(one for one in blocks if one.round == sent.message.round)
        if not block.opening:
            self.account.kinds[kind_of(block, event, before, self.state)] += 1
            self.account.waited_ms += block.waited_ms

    def _perform(self, action: Action) -> None:
        match action:
            case SendVerify(worker, verify):
                self._world.send(worker, verify)
            case SendToDrafter(worker, message):
                self._world.send(worker, message)
            case Persist(commit):
                self._world.persist(self.hear, commit.record.round)
            case Emit(commit):
                self._emit(commit)
            case NeedWorker(role):
                self.hear(WorkerAttached, role, self._world.place(role, self.name))
            case OpenOnWorker(worker, opening):
                self._world.send(worker, opening)
            case Release(role, worker):
                self._world.close(role, worker, self.name)
            case Finish():
                self._finish()
            case Suspend(reason, detail):
                raise RuntimeError(f"session {self.name}: {reason.value} {detail}")
            case _:
                pass

    def _emit(self, commit: Commit) -> None:
        """Committed tokens only grow, and are the target's own."""
        account, record, end = self.account, commit.record, commit.base_len + len(commit.token_ids)
        if commit.base_len != account.tokens or not commit.token_ids:
            raise AssertionError(f"session {self.name}: tokens do not follow one another")
        if commit.token_ids != tuple(self._truth[commit.base_len : end]):
            raise AssertionError(f"session {self.name}: a token is not the target's own")
        if not account.tokens:
            account.first, account.first_verify_ms = self._world.now, record.verify_ms
        account.tokens = end
        account.rounds += 1
        account.sent += record.draft_tokens
        account.accepted += record.accepted_tokens
        account.verify_ms += record.verify_ms
        account.blocks.append((record.draft_tokens, record.accepted_tokens))

    def _finish(self) -> None:
        self.account.finished = self._world.now
        if self.account.tokens != self.state.config.sampling.max_tokens:
            raise AssertionError(f"session {self.name}: the text is not whole")
        self._world.ended(self)

    def _set_tick(self) -> None:
        wake = rounds.next_wake(self.state, self._world.now)
        if wake is None or wake >= FOREVER:
            self._ticks += 1
            self._tick_at = None
        elif self._tick_at is None or wake < self._tick_at:
            self._ticks += 1
            self._tick_at = wake
            self._world.tick(wake, self._tick, self._ticks)

    def _tick(self, number: int) -> None:
        if number == self._ticks:
            self._tick_at = None
            self.hear(Tick)


def replayed(state: State, events: Sequence[Event]) -> list[Turn]:
    """What the machine decides when it hears these events."""
    turns: list[Turn] = []
    for event in events:
        state, actions = rounds.step(state, event)
        turns.append((event, actions))
    return turns
