"""The real machine and the real cores of both workers in one loop, with every misfortune.

What runs here is what runs in the cluster, except for gRPC, Redis and the model's
arithmetic. Processes die, links break, messages come twice, a session is taken over by
another orchestrator while the old one still believes it has it. All of it drawn from one
seed, time included.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from orchestrator.core import events, rounds
from orchestrator.core.pacing import Eager, Fixed
from orchestrator.workers.events import to_core

from orchestrator.steering.config import Limits, SessionConfig
from orchestrator.steering.rounds import Commit
from services.contract import types
from tests.proof.process import Process
from tests.proof.setups import Restless

SESSION, PROMPT, WINDOW = "s", (1, 2, 3), 5
POLICIES = (Restless(WINDOW), Eager(WINDOW), Fixed(WINDOW))


@dataclass
class Luck:
    """Chances per turn."""

    death: float = 0.002
    broken_link: float = 0.003
    takeover: float = 0.002
    twice: float = 0.08


@dataclass
class Owner:
    """An orchestrator that has the session, or thinks so: its machine and its wires.

    `links`: number of its link to each process it talks to.
    """

    state: rounds.State
    links: dict[str, int] = field(default_factory=dict)
    wires: dict[str, list[Any]] = field(default_factory=dict)
    over: bool = False


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
        patience = {"worker_attempts": 10_000, "drafter_backoff": 0.001, "verifier_wait": 1e9}
        limits = Limits(max_in_flight=1 + seed % 2, deadline=1e9, max_tree_nodes=64, **patience)
        sampling = types.ResolvedSampling(max_tokens=max_tokens)
        shape = {"window": WINDOW, "num_candidates": num_candidates, "plain_ahead": seed % 3 > 0}
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
        self.said: list[types.Verdict] = []
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
                self.feed(owner, events.Tick(self.now))
            case 1 | 2 | 3:
                for _ in range(self.random.randrange(1, 4)):
                    process.core.step()
                self._collect(process)
            case _:
                self._deliver(owner)

    def _deliver(self, owner: Owner) -> None:
        ready = [wire for wire, messages in owner.wires.items() if messages]
        if not ready:
            return
        wire = self.random.choice(ready)
        message = owner.wires[wire][0]
        if self.random.random() < self.luck.twice and wire != "place":
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
            self.feed(owner, replace(message, at=self.now))

    def _collect(self, process: Process) -> None:
        """Put what a process said on the wires of those it said it to."""
        said, process.said = process.said, []
        for link, event in said:
            if isinstance(event, types.Verdict):
                self.said.append(event)
            for owner in self.owners:
                if owner.links.get(process.name) == link:
                    heard = to_core(process.name, process.role, event, self.now)
                    if heard is not None:
                        owner.wires.setdefault(process.name, []).append(heard)

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
            self.feed(owner, events.WorkerLost(self.now, process.role, process.name))

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

    # --- the machine ------------------------------------------------------------------

    def _own(self, term: int) -> Owner:
        config = replace(self.config, term=term)
        policy = POLICIES[self.config.seed % len(POLICIES)]
        owner = Owner(rounds.new_session(config, policy, tuple(self.stored)))
        self.feed(owner, events.Begin(self.now))
        return owner

    def _start(self, role: types.Role) -> Process:
        return Process(role, f"{role.value}{next(self.numbers)}")

    def feed(self, owner: Owner, event: events.Event) -> None:
        """Let a machine hear an event, and do what it asks for."""
        owner.state, actions = rounds.step(owner.state, event)
        for action in actions:
            self._perform(owner, action)

    def _perform(self, owner: Owner, action: events.Action) -> None:
        match action:
            case events.NeedWorker(role):
                owner.wires.setdefault("place", []).append(role)
            case events.OpenOnWorker(name, message) | events.SendToDrafter(name, message):
                self._send(owner, name, message)
            case events.SendVerify(name, message):
                self._count(message)
                self._send(owner, name, message)
            case events.Persist(commit):
                owner.wires.setdefault("store", []).append(commit)
            case events.Release(types.Role.VERIFIER, name):
                self._send(owner, name, types.CloseVerify(SESSION))
            case events.Release(types.Role.DRAFTER, name):
                self._send(owner, name, types.CloseDraft(SESSION))
            case events.Emit() | events.Finish() | events.Discarded():
                pass
            case _:
                raise AssertionError(f"{action} is not expected here")

    def _send(self, owner: Owner, name: str, message: Any) -> None:
        if name in owner.links:
            owner.wires.setdefault(f">{name}", []).append(message)

    def _count(self, block: types.Verify) -> None:
        self.seen["chained"] += block.extends_round > 0
        self.seen["tree"] += not block.tree.is_chain
        self.seen["without bonus"] += not block.want_bonus

    def _attach(self, owner: Owner, role: types.Role) -> None:
        attached = owner.state.verifier if role is types.Role.VERIFIER else owner.state.drafter
        if attached is not None:
            return
        names = [name for name, process in self.processes.items() if process.role is role]
        name = self.random.choice(names)
        if name not in owner.links:
            owner.links[name] = next(self.numbers)
        self.feed(owner, events.WorkerAttached(self.now, role, name))

    def _store(self, owner: Owner, commit: Commit) -> None:
        """The store takes commits of the latest term alone, each once; others end their sender."""
        if owner.state.config.term < self.term:
            self.seen["fenced"] += 1
            self._end(owner)
            return
        if commit.base_len == len(self.stored):
            self.stored += commit.token_ids
        self.feed(owner, events.Persisted(self.now, commit.record.round))
