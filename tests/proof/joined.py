"""The real machine, the real hub and the real cores of both workers, with every misfortune.

What runs here is what runs in the cluster, except for gRPC, Redis and the model's
arithmetic. Processes die, links break, a session is taken over by another orchestrator while the
old one still believes it has it, messages come in the middle of a step, the store answers twice.
All of it drawn from one seed, time included.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from orchestrator.steering import events, machine
from orchestrator.steering.config import Limits, SessionConfig
from orchestrator.steering.hub import Hub
from orchestrator.steering.ports import Said, Taken
from orchestrator.steering.rounds import Commit
from orchestrator.steering.state import new_session
from services.contract import types
from services.contract.frames import DraftFrame, StepEnd, StepFrame, StepRow, step_rows
from services.contract.worker_messages import (
    EndSession,
    SessionGone,
    SessionStarted,
    SetDraftedFor,
    StartVerify,
    TextStates,
)
from tests.proof.process import Process

SESSION, PROMPT, WINDOW = "s", (1, 2, 3), 5


@dataclass
class Luck:
    """Chances per turn."""

    death: float = 0.005
    broken_link: float = 0.006
    takeover: float = 0.006
    twice: float = 0.15


class Owner:
    """An orchestrator that has the session, or thinks so: its machine, its hub and its wires.

    `links`: number of its link to each process it talks to.
    """

    def __init__(self, joined: Joined, config: SessionConfig, stored: Sequence[int]) -> None:
        self.joined = joined
        self.links: dict[str, int] = {}
        self.wires: dict[str, list[Any]] = {}
        self.calls: list[Callable[[], object]] = []
        self.over = False
        now = lambda: joined.now  # noqa: E731
        self.hub = Hub(self, self, clock=now, cpu=lambda: joined.busy * joined.now)
        handle = self.hub.enter(self)
        self.state = new_session(config, handle, tuple(stored))

    # --- an event loop ----------------------------------------------------------------

    def call_soon(self, callback: Callable[[], object]) -> None:
        """At the next turn of the loop."""
        self.calls.append(callback)

    def call_later(self, delay: float, callback: Callable[[], object]) -> None:
        """Soon enough."""
        self.calls.append(callback)

    def loop(self) -> None:
        """A turn of it."""
        calls, self.calls = self.calls, []
        for call in calls:
            call()

    # --- links ------------------------------------------------------------------------

    def send(self, worker: str, session: str | int, command: Any) -> None:
        """To a worker, unless it is gone."""
        self.forward(worker, command)

    def forward(self, worker: str, command: Any) -> None:
        """The same."""
        if worker in self.links:
            self.wires.setdefault(f">{worker}", []).append(command)

    def release(self, worker: str, session: str | int) -> None:
        """Close a session there."""
        assert isinstance(session, int)
        self.forward(worker, EndSession(session))

    def cut(self, worker: str, reason: str) -> None:
        """No worker here does what it must not."""
        raise AssertionError(f"{worker}: {reason}")

    # --- the session ------------------------------------------------------------------

    def took(self, worker: str, taken: Sequence[Taken]) -> None:
        """Steps that were joined."""
        self.joined.seen["joined"] += len(taken) > 1
        self.feed(events.StepsTaken(self.joined.now, worker, tuple(taken)))

    def hear(self, worker: str, role: types.Role, event: Said) -> None:
        """What a worker says."""
        match event:
            case SessionStarted(_, opening):
                self.feed(events.Started(self.joined.now, role, worker, opening))
            case SessionGone():
                self.joined.seen["gone"] += 1
                why = event.message or event.reason.name
                at = self.joined.now
                self.feed(events.WorkerLost(at, role, worker, why, opening=event.opening))
            case TextStates():
                raise AssertionError("nobody asked for states")

    def lost(self, worker: str, role: types.Role, reason: str) -> None:
        """A worker is gone."""
        self.feed(events.WorkerLost(self.joined.now, role, worker, reason))

    def feed(self, event: events.Event) -> None:
        """Let the machine hear an event, and do what it asks for."""
        self.state, actions = machine.step(self.state, event)
        for action in actions:
            self._perform(action)

    def _perform(self, action: events.Action) -> None:
        handle = self.state.handle
        match action:
            case events.NeedWorker(role):
                self.wires.setdefault("place", []).append(role)
            case events.Start(_, worker, message):
                if isinstance(message, StartVerify):
                    size = len(message.output)
                    own = (message.opening, size, message.limit, message.window)
                    self.hub.verified_by(handle, worker, *own)
                else:
                    self.hub.drafted_by(handle, worker)
                self.hub.send(worker, message)
            case events.SetDraftedFor(worker, drafted_for):
                self.hub.send(worker, SetDraftedFor(handle, drafted_for))
            case events.Grant(limit):
                self.hub.grant(handle, limit)
            case events.Persist(commit):
                self.wires.setdefault("store", []).append(commit)
            case events.Release(role, worker):
                if role is types.Role.VERIFIER:
                    self.hub.verified_by(handle, None)
                else:
                    self.hub.drafted_by(handle, None)
                self.hub.send(worker, EndSession(handle))
            case events.Emit() | events.Finish():
                pass
            case _:
                raise AssertionError(f"{action} is not expected here")

    def attach(self, role: types.Role, name: str) -> None:
        """Placement chose a worker."""
        self.hub.flush(self.state.handle)
        self.feed(events.WorkerAttached(self.joined.now, role, name))


class Joined:
    """One session from its begin to its end, whoever owns it."""

    def __init__(
        self,
        seed: int,
        mode: types.VerifyMode,
        num_candidates: int = 1,
        luck: Luck | None = None,
        max_tokens: int = 60,
    ) -> None:
        self.random, self.luck, self.now = random.Random(seed), luck or Luck(), 0.0
        # How busy the orchestrator is: whether steps are joined.
        self.busy = seed % 2
        patience = {"worker_attempts": 10_000, "drafter_backoff": 0.001, "verifier_wait": 1e9}
        limits = Limits(deadline=1e9, verdict_wait=1e9, max_tree_nodes=64, **patience)
        sampling = types.ResolvedSampling(max_tokens=max_tokens)
        shape = {"window": WINDOW, "num_candidates": num_candidates, "synchronous": seed % 3 == 2}
        given = (SESSION, PROMPT, mode, sampling, seed)
        self.config = SessionConfig(*given, method="model", limits=limits, **shape)
        self.numbers = count(1)
        self.processes = {
            process.name: process
            for role in (types.Role.VERIFIER, types.Role.DRAFTER)
            for process in (self._start(role), self._start(role))
        }
        self.stored: list[int] = []
        self.term = 1
        self.seen: Counter[str] = Counter()
        self.said: list[StepRow] = []
        self.owners = [self._own(1)]

    # --- turns ------------------------------------------------------------------------

    def run(self) -> Joined:
        """Until the text has ended."""
        for _ in range(20_000):
            if len(self.stored) == self.config.sampling.max_tokens:
                return self
            self._turn()
        raise AssertionError("the session does not end")

    def _turn(self) -> None:
        self.now += 0.002
        self._misfortune()
        self.owners = [owner for owner in self.owners if not owner.over]
        owner = self.random.choice(self.owners)
        process = self.random.choice(list(self.processes.values()))
        match self.random.randrange(8):
            case 0:
                owner.hub.flush(owner.state.handle)
                owner.feed(events.Tick(self.now))
            case 1 | 2:
                self._work(process)
            case 3:
                owner.loop()
            case _:
                for _ in range(3):
                    if not owner.over:
                        self._deliver(owner)

    def _work(self, process: Process) -> None:
        """A drafter is a few levels ahead of each step."""
        drafts = process.role is types.Role.DRAFTER
        for _ in range(self.random.randrange(2, 6) if drafts else self.random.randrange(2)):
            process.core.step()
            self._collect(process)

    def _deliver(self, owner: Owner) -> None:
        ready = [wire for wire, messages in owner.wires.items() if messages]
        if not ready:
            return
        wire = self.random.choice(ready)
        message = owner.wires[wire][0]
        # A link doubles nothing, but the store may say the same once more.
        if wire == "store" and self.random.random() < self.luck.twice:
            self.seen["twice"] += 1
        else:
            owner.wires[wire].pop(0)
        if wire == "place":
            self._attach(owner, message)
        elif wire == "store":
            self._store(owner, message)
        elif wire.startswith(">"):
            process = self.processes[wire[1:]]
            process.core.handle(owner.links[process.name], message)
            self._collect(process)
        else:
            process = self.processes[wire]
            owner.hub.heard(process.name, process.role, message)

    def _during(self, process: Process) -> None:
        """While a step runs, some of what is on the wires comes in."""
        for owner in self.owners:
            wire = owner.wires.get(f">{process.name}", [])
            for _ in range(self.random.randrange(len(wire) + 1)):
                self.seen["during a step"] += 1
                process.core.handle(owner.links[process.name], wire.pop(0))

    def _collect(self, process: Process) -> None:
        """Put what a process said on the wires of those it said it to."""
        said, process.said = process.said, []
        for link, event in said:
            self._count(event)
            for owner in self.owners:
                if owner.links.get(process.name) == link:
                    owner.wires.setdefault(process.name, []).append(event)

    def _count(self, event: Any) -> None:
        if isinstance(event, StepFrame):
            rows = [*step_rows(event)]
            self.said += rows
            self.seen["late"] += sum(row.end is StepEnd.NONE for row in rows)
        if isinstance(event, DraftFrame):
            self.seen["tree"] += bool(event.parents)

    # --- misfortune -------------------------------------------------------------------

    def _misfortune(self) -> None:
        process = self.random.choice(list(self.processes.values()))
        chance = self.random.random()
        if chance < self.luck.death:
            self.seen["death"] += 1
            del self.processes[process.name]
            fresh = self._start(process.role)
            self.processes[fresh.name] = fresh
            for owner in self.owners:
                self._cut(owner, process)
        elif chance < self.luck.death + self.luck.broken_link:
            self.seen["broken link"] += 1
            self._cut(self.random.choice(self.owners), process)
        elif chance < self.luck.death + self.luck.broken_link + self.luck.takeover:
            self._take_over()

    def _cut(self, owner: Owner, process: Process) -> None:
        """A link breaks: what is on it is lost, and both sides come to know."""
        link = owner.links.pop(process.name, None)
        owner.wires.pop(process.name, None)
        owner.wires.pop(">" + process.name, None)
        if link is not None:
            process.core.drop_link(link)
            owner.hub.lost(process.name, process.role, [owner.state.handle], "it is gone")

    def _take_over(self) -> None:
        """Somebody resumes the session; the old owner dies, or goes on until it is fenced."""
        self.seen["takeover"] += 1
        if self.random.random() < 0.5:
            for owner in self.owners:
                self._end(owner)
        self.term += 1
        self.owners.append(self._own(self.term))

    def _end(self, owner: Owner) -> None:
        owner.over = True
        for name, link in owner.links.items():
            if name in self.processes:
                self.processes[name].core.drop_link(link)

    # --- orchestrators ----------------------------------------------------------------

    def _own(self, term: int) -> Owner:
        owner = Owner(self, replace(self.config, term=term), self.stored)
        owner.feed(events.Begin(self.now))
        return owner

    def _start(self, role: types.Role) -> Process:
        return Process(role, f"{role.value}{next(self.numbers)}", self._during)

    def _attach(self, owner: Owner, role: types.Role) -> None:
        attached = owner.state.verifier if role is types.Role.VERIFIER else owner.state.drafter
        if attached is not None:
            return
        names = [name for name, process in self.processes.items() if process.role is role]
        name = self.random.choice(names)
        if name not in owner.links:
            owner.links[name] = next(self.numbers)
        owner.attach(role, name)

    def _store(self, owner: Owner, commit: Commit) -> None:
        """The store takes commits of the latest term alone, each once; others end their sender."""
        if owner.state.config.term < self.term:
            self.seen["fenced"] += 1
            self._end(owner)
            return
        if commit.base_len == len(self.stored):
            self.stored += commit.token_ids
        owner.feed(events.Persisted(self.now, commit.record.round))
