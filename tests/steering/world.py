"""A simulated cluster around the real machine of a steered session.

What the target may say next is a pure function of the text, and a book is kept of
what was drafted after which text and what was judged. Delivery order, duplicates and losses are
drawn from one seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.steering import events, machine
from orchestrator.steering.config import Limits, Phase, SessionConfig
from orchestrator.steering.credit import MOST
from orchestrator.steering.ports import StepFacts, Taken
from orchestrator.steering.rounds import Commit
from orchestrator.steering.state import State, new_session
from services.contract.frames import StepRow, WaitReason
from services.contract.types import ResolvedSampling, Role, VerifyMode
from services.contract.worker_messages import StartDraft, StartVerify
from tests.steering.actors import VOCABULARY, Book, SimDraft, SimDrafter, SimVerifier, allowed

PROMPT = (7, 8, 9)
STEP_MS = 1.0


@dataclass
class Faults:
    """How unkind the world is."""

    accuracy: float = 0.7
    duplicates: float = 0.0
    reorder: float = 0.0
    lose_drafter: float = 0.0
    lose_verifier: float = 0.0
    drafter_speed: float = 1.0
    verifier_speed: float = 1.0
    store_speed: float = 1.0
    # The load allows another window.
    caps: float = 0.0


class World:
    """One session, its workers, its store, and what the links' hub does for it."""

    def __init__(
        self,
        seed: int,
        faults: Faults,
        *,
        max_tokens: int = 60,
        window: int = 6,
        mode: VerifyMode = VerifyMode.GREEDY,
        method: str = "model",
        workers: int = 3,
    ) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.faults = faults
        self.workers = workers
        self.now = 0.0
        config = SessionConfig(
            "s",
            PROMPT,
            mode,
            ResolvedSampling(temperature=0.0, max_tokens=max_tokens),
            seed=1,
            method=method,
            window=window,
            vocab_size=VOCABULARY,
            limits=Limits(worker_attempts=1000, drafter_backoff=0.001, deadline=1e6),
        )
        self.state: State = new_session(config, 1)
        self.book = Book(mode)
        self.verifiers: dict[str, SimVerifier] = {}
        self.drafters: dict[str, SimDrafter] = {}
        self.wires: dict[str, list[Callable[[], None]]] = {}
        self.steps: list[tuple[str, Taken]] = []
        self.emitted: list[int] = []
        self.persisted: list[int] = []
        self.commits: list[Commit] = []
        self.finished = False
        self.suspended = False
        self.rollbacks = 0
        self.gaps = 0
        self.trace: list[tuple[events.Event, list[events.Action]]] = []

    # --- driving ------------------------------------------------------------------

    def run(self, steps: int = 10_000) -> World:
        self.feed(events.Begin(self.now))
        for _ in range(steps):
            if self.finished:
                break
            self.turn()
        return self

    def turn(self) -> None:
        ready = [name for name, wire in self.wires.items() if wire]
        self.now += 0.001 if ready or self.steps else 0.02
        self._misfortune()
        for _ in range(self.random.randrange(4) if ready else 0):
            self._deliver(self.random.choice(ready))
        if self.random.random() < self.faults.drafter_speed:
            self._draft()
        if self.random.random() < self.faults.verifier_speed:
            self._verify()
        if self.steps and self.random.random() < 0.5:
            self.flush()
        if self.random.random() < 0.2:
            self.feed(events.Tick(self.now))
        if self.faults.caps and self.random.random() < self.faults.caps:
            self.feed(events.Capped(self.now, self.random.randrange(2 * self.state.config.window)))

    def _deliver(self, name: str) -> None:
        if name == "store" and self.random.random() >= self.faults.store_speed:
            return
        wire = self.wires.get(name)
        if not wire:
            return
        # Commands are neither doubled nor late: a link is a stream.
        said = not name.startswith(">")
        late = said and name != "store" and self.random.random() < self.faults.reorder
        index = self.random.randrange(len(wire)) if late else 0
        message = wire[index]
        if not (said and self.random.random() < self.faults.duplicates):
            wire.pop(index)
        message()

    def _misfortune(self) -> None:
        chances = self.faults
        if self.drafters and self.random.random() < chances.lose_drafter:
            self._kill(Role.DRAFTER, self.random.choice(list(self.drafters)))
        if self.verifiers and self.random.random() < chances.lose_verifier:
            self.lose_verifier()

    def lose_verifier(self) -> None:
        self._kill(Role.VERIFIER, self.random.choice(list(self.verifiers)))

    def _kill(self, role: Role, name: str) -> None:
        """Its messages are lost, but those that the hub has."""
        (self.verifiers if role is Role.VERIFIER else self.drafters).pop(name)
        self.wires = {k: w for k, w in self.wires.items() if name not in k}
        self.flush()
        self.feed(events.WorkerLost(self.now, role, name))

    def _draft(self) -> None:
        for name, drafter in self.drafters.items():
            if (draft := drafter.draft()) is not None:
                self._post(f"{name}>", lambda n=name, d=draft: self._hand_on(n, d))

    def _hand_on(self, name: str, draft: SimDraft) -> None:
        """The hub forwards drafts of the session's drafter to its verifier."""
        drafter, verifier = self.state.drafter, self.state.verifier
        if drafter and verifier and drafter.worker == name:
            self._to_verifier(verifier.worker, lambda sim: sim.put(draft))

    def _verify(self) -> None:
        for name, verifier in self.verifiers.items():
            if verifier.may_step:
                row = verifier.step()
                self._post(f"{name}>", lambda n=name, r=row: self._heard(n, r))

    def _heard(self, name: str, row: StepRow) -> None:
        """The hub joins steps, and forwards those that follow to the drafter."""
        facts = StepFacts(1, step_ms=STEP_MS, sessions=1, rows=1, heard_at=self.now)
        self.steps.append((name, Taken(row, facts)))
        drafter, verifier = self.state.drafter, self.state.verifier
        if drafter and verifier and (verifier.worker, verifier.opening) == (name, row.opening):
            self._to_drafter(drafter.worker, lambda sim: self._told(drafter.worker, sim, row))

    def _told(self, name: str, drafter: SimDrafter, row: StepRow) -> None:
        before = drafter.rollbacks
        if not drafter.take(row):
            self.gaps += 1
            assert drafter.opened is not None
            opening = drafter.opened.opening
            lost = events.WorkerLost(self.now, Role.DRAFTER, name, opening=opening)
            self._post(f"{name}>", lambda: self.feed(lost))
        self.rollbacks += drafter.rollbacks - before

    def flush(self) -> None:
        """Tell the session what was joined, by worker."""
        while self.steps:
            worker = self.steps[0][0]
            taken = tuple(one for name, one in self.steps if name == worker)
            self.steps = [one for one in self.steps if one[0] != worker]
            self.feed(events.StepsTaken(self.now, worker, taken, lag_s=0.004))

    def _post(self, wire: str, message: Callable[[], None]) -> None:
        self.wires.setdefault(wire, []).append(message)

    def _to_verifier(self, name: str, act: Callable[[SimVerifier], object]) -> None:
        def arrive() -> None:
            if name in self.verifiers:
                act(self.verifiers[name])

        self._post(f">{name}", arrive)

    def _to_drafter(self, name: str, act: Callable[[SimDrafter], object]) -> None:
        def arrive() -> None:
            if name in self.drafters:
                act(self.drafters[name])

        self._post(f">{name}", arrive)

    # --- actions ------------------------------------------------------------------

    def feed(self, event: events.Event) -> None:
        before = self.state
        self.state, actions = machine.step(self.state, event._replace(at=self.now))
        self.seen(event._replace(at=self.now), actions, before)
        assert self.state.committed[: len(before.committed)] == before.committed, "it shrank"
        for action in actions:
            self.perform(action)

    def seen(self, event: events.Event, actions: list[events.Action], before: State) -> None:
        """A step of the machine, before its actions are performed."""
        del before
        self.trace.append((event, actions))

    def perform(self, action: events.Action) -> None:
        match action:
            case events.NeedWorker(role):
                name = f"{role.value}{self.random.randrange(self.workers)}"
                self._post("placement", lambda: self._attach(role, name))
            case events.Start(_, name, message):
                self._start(name, message)
            case events.Grant(limit):
                assert limit <= len(self.persisted) + MOST, "credit that the store has not earned"
                assert self.state.verifier is not None
                self._to_verifier(self.state.verifier.worker, lambda sim: sim.grant(limit))
            case events.SetWindow(name, window):
                self._to_drafter(name, lambda sim: setattr(sim, "window", window))
            case events.SetDraftedFor():
                pass
            case events.Persist(commit):
                self.commits.append(commit)
                self._post("store", lambda: self._store(commit))
            case events.Emit(commit):
                done = len(self.emitted) + len(commit.token_ids)
                assert done <= len(self.persisted), "emitted before it was stored"
                assert commit.base_len == len(self.emitted), "emitted twice, or too little"
                self.emitted += commit.token_ids
            case events.Release(role, name):
                if role is Role.VERIFIER:
                    self._to_verifier(name, SimVerifier.end)
                else:
                    self._to_drafter(name, SimDrafter.end)
            case events.Finish():
                self.finished = True
            case events.Suspend():
                self.suspended = True

    def _attach(self, role: Role, name: str) -> None:
        taken = self.state.verifier if role is Role.VERIFIER else self.state.drafter
        if taken is not None:
            return
        if role is Role.VERIFIER:
            made = SimVerifier(self.state.config.mode, self.seed, self.book)
            self.verifiers.setdefault(name, made)
        else:
            made_too = SimDrafter(self.faults.accuracy, self.seed, self.book)
            self.drafters.setdefault(name, made_too)
        self.flush()
        self.feed(events.WorkerAttached(self.now, role, name))

    def _start(self, name: str, message: StartVerify | StartDraft) -> None:
        if isinstance(message, StartVerify):
            self._to_verifier(name, lambda sim: self._open_verify(name, sim, message))
        else:
            self._to_drafter(name, lambda sim: self._open_draft(name, sim, message))

    def _open_verify(self, name: str, verifier: SimVerifier, message: StartVerify) -> None:
        if verifier.open(message):
            verifier.started = True
            self._answer(Role.VERIFIER, name, message.opening)

    def _open_draft(self, name: str, drafter: SimDrafter, message: StartDraft) -> None:
        if drafter.open(message):
            self._answer(Role.DRAFTER, name, message.opening)

    def _answer(self, role: Role, name: str, opening: int) -> None:
        started = events.Started(self.now, role, name, opening)
        self._post(f"{name}>", lambda: self.feed(started))
        if self.random.random() < 0.5:
            reason = self.random.choice(list(WaitReason))
            self._post(f"{name}>", lambda: self.feed(events.Waited(self.now, name, reason)))

    def _store(self, commit: Commit) -> None:
        if commit.base_len == len(self.persisted):
            self.persisted += commit.token_ids
        self.feed(events.Persisted(self.now, commit.record.round))

    # --- properties -----------------------------------------------------------------

    def lawful(self) -> bool:
        """Whether the client got a whole text that the target may say, and that is stored."""
        text, limit = tuple(self.emitted), self.state.config.sampling.max_tokens
        mode = self.state.config.mode
        said = all(token in allowed(mode, text[:i]) for i, token in enumerate(text))
        whole = self.state.phase is Phase.DONE and self.emitted == self.persisted
        return said and whole and len(text) == limit and self._accounted()

    def _accounted(self) -> bool:
        """Whether the rounds of all commits are told, each once, in their order."""
        records = [record for commit in self.commits for record in commit.records]
        base = self.commits[0].base_len if self.commits else 0
        for number, record in enumerate(records):
            if (record.round, record.base_len) != (1 + number, base):
                return False
            base += record.emitted_tokens
        return base == len(self.persisted)
