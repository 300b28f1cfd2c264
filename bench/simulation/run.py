"""A whole simulation: orchestrator, workers, links and sessions, in one agenda."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from bench.simulation.agenda import Agenda, Device, Link
from bench.simulation.drafter import Guesses, SimulatedDrafter
from bench.simulation.report import Report
from bench.simulation.scenario import Scenario
from bench.simulation.session import FOREVER, SimulatedSession
from bench.simulation.tree_drafter import METHOD, TreeDrafter, TreeDrafts
from bench.simulation.verifier import SimulatedVerifier
from orchestrator.core.events import Event, Persisted
from orchestrator.core.rounds import new_session
from orchestrator.core.state import SMALL_TREE_WIDTH, Limits, SessionConfig, State
from orchestrator.session.pacing_memory import PacingMemory
from services.contract.types import (
    CloseDraft,
    CloseVerify,
    DrafterCommand,
    ResolvedSampling,
    Role,
    VerifierCommand,
    VerifyMode,
)

PROMPT = (0,)
LARGEST_TOKEN = 1 << 16
SCOPE = "simulated"
"""Whose texts all sessions are: what one learned of drafts that hit is there for the next."""


class Simulation:
    """One run of a scenario. The same one runs the same way every time.

    Raises AssertionError if a session's text is not the target's own, token for token.
    """

    def __init__(self, scenario: Scenario, *, record: bool = False) -> None:
        self.scenario = scenario
        self.agenda = Agenda()
        self.ended_sessions: list[SimulatedSession] = []
        self._record = record
        self._random = Random(f"{scenario.seed}/links")
        self._truths: dict[str, Sequence[int]] = {}
        self._guesses: dict[str, Guesses] = {}
        self._sessions: dict[str, SimulatedSession] = {}
        self._pacing_memory = PacingMemory()
        self._begun = 0
        self._computing_until = 0.0
        self._placed = {Role.VERIFIER: 0, Role.DRAFTER: 0}
        self._line: deque[float] = deque()
        self._homes: dict[str, dict[Role, int]] = {}
        self._loads: dict[Role, list[int]] = {
            Role.VERIFIER: [0] * scenario.verifiers,
            Role.DRAFTER: [0] * scenario.drafters,
        }
        self._devices = [Device(self.agenda) for _ in range(scenario.verifiers)]
        self.verifiers = [self._verifier(n) for n in range(scenario.verifiers)]
        self.drafters = [self._drafter(n) for n in range(scenario.drafters)]
        workers = [*self.verifiers, *self.drafters]
        self._workers = {worker.name: worker for worker in workers}
        self._links = {one.name: self._link(self._hop_ms(one.name)) for one in workers}

    def run(self) -> Report:
        """Every session to its end."""
        if self.scenario.arrivals_per_s:
            self._plan_arrivals()
        else:
            for _ in range(min(self.scenario.concurrency, self.scenario.sessions)):
                self._begin_another(self.now)
        self.agenda.run()
        if len(self.ended_sessions) != self.scenario.sessions:
            raise AssertionError("not every session came to its end")
        return Report.of(self)

    # --- sessions -------------------------------------------------------------

    def _plan_arrivals(self) -> None:
        """Poisson, given how many come in the time in which as many are expected."""
        random, count = Random(f"{self.scenario.seed}/arrivals"), self.scenario.sessions
        for at in sorted(random.random() for _ in range(count)):
            self.agenda.at(at * count / self.scenario.arrivals_per_s, self._arrived)

    def _arrived(self) -> None:
        self._line.append(self.now)
        self._admit()

    def _admit(self) -> None:
        while self._line and len(self._sessions) < self.scenario.concurrency:
            self._begin_another(self._line.popleft())

    def _begin_another(self, asked: float) -> None:
        name = str(self._begun)
        self._begun += 1
        trees = self.scenario.trees
        self._truths[name] = trees.text(name).answer if trees else self._drawn(name)
        state = self._new_state(name)
        session = SimulatedSession(state, self._truths[name], self, record=self._record)
        session.account.asked = asked
        self._sessions[name] = session
        session.begin()

    def _drawn(self, name: str) -> Sequence[int]:
        """A text, and where the drafter is right in it."""
        scenario, seed = self.scenario, f"{self.scenario.seed}/{name}"
        random = Random(seed)
        # One more than is asked for: the target's own token after the last one.
        places = scenario.tokens_of(int(name)) + 1
        truth = [2 * random.randrange(1, LARGEST_TOKEN) for _ in range(places)]
        self._guesses[name] = Guesses(truth, scenario.text.places(places, random), seed)
        return truth

    def _new_state(self, name: str) -> State:
        config, policy = config_of(self.scenario, name), self.scenario.new_policy()
        if self.scenario.learning:
            policy = self._pacing_memory.seeded(config, policy)
        return new_session(config, policy)

    def ended(self, session: SimulatedSession) -> None:
        """The next one begins."""
        self.ended_sessions.append(session)
        self._pacing_memory.remember(session.state)
        del self._sessions[session.name]
        for role, worker in self._homes.pop(session.name, {}).items():
            self._loads[role][worker] -= 1
        if self.scenario.arrivals_per_s:
            self._admit()
        elif self.scenario.pause_ms:
            paused = self.scenario.pause_ms * self._random.random()
            self.agenda.after(paused, self._begin_the_next)
        else:
            self._begin_the_next()

    def _begin_the_next(self) -> None:
        if self._begun < self.scenario.sessions:
            self._begin_another(self.now)

    # --- what sessions are in -------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds."""
        return self.agenda.now

    def place(self, role: Role, session: str) -> str:
        """Workers take sessions in turn; those that arrive, whoever has the fewest."""
        workers = self.verifiers if role is Role.VERIFIER else self.drafters
        loads, homes = self._loads[role], self._homes.setdefault(session, {})
        self._placed[role] += 1
        worker = self._placed[role] % len(workers)
        if self.scenario.beside and role is Role.DRAFTER:
            worker = homes[Role.VERIFIER]
        elif self.scenario.arrivals_per_s:
            worker = min(range(len(workers)), key=loads.__getitem__)
        if (before := homes.get(role)) is not None:
            loads[before] -= 1
        homes[role] = worker
        loads[worker] += 1
        return workers[worker].name

    def send(self, worker: str, command: VerifierCommand | DrafterCommand) -> None:
        """Over the worker's link."""
        self._links[worker].send(self._workers[worker].handle, command)

    def close(self, role: Role, worker: str, session: str) -> None:
        """Over the worker's link."""
        self.send(worker, CloseVerify(session) if role is Role.VERIFIER else CloseDraft(session))

    def persist(self, heard: Callable[..., None], round_: int) -> None:
        """The store answers after a while."""
        self.agenda.after(self.scenario.persist_ms, self._compute, heard, Persisted, round_)

    def tick(self, at: float, call: Callable[[int], None], number: int) -> None:
        """A timer."""
        self.agenda.at(at, call, number)

    # --- the orchestrator's end of the links ----------------------------------

    def _answers(self, worker: str) -> Callable[..., None]:
        link = self._link(self._hop_ms(worker))

        def deliver(session: str, kind: Callable[..., Event], /, *what: Any) -> None:
            link.send(self._arrive, session, kind, *what)

        return deliver

    def _arrive(self, name: str, kind: Callable[..., Event], *what: Any) -> None:
        session = self._sessions.get(name)
        if session is not None:
            self._compute(session.hear, kind, *what)

    def _compute(self, hear: Callable[..., None], kind: Callable[..., Event], *what: Any) -> None:
        """One event at a time, if it costs anything to handle one."""
        if not self.scenario.cpu_ms:
            hear(kind, *what)
            return
        start = max(self.now, self._computing_until)
        self._computing_until = start + 1e-3 * self.scenario.cpu_ms
        self.agenda.at(self._computing_until, hear, kind, *what)

    # --- workers --------------------------------------------------------------

    def _hop_ms(self, worker: str) -> float:
        own = self.scenario.drafter_hop_ms if worker.startswith("drafter") else None
        return self.scenario.hop_ms if own is None else own

    def _link(self, hop_ms: float) -> Link:
        return Link(self.agenda, hop_ms, self.scenario.jitter_ms, self._random)

    def _verifier(self, number: int) -> SimulatedVerifier:
        scenario, name = self.scenario, f"verifier-{number}"
        return SimulatedVerifier(
            name, self.agenda, scenario.verify, self._truths, self._answers(name),
            device=self._devices[number], prompts=scenario.prompts, gather_ms=scenario.gather_ms,
        )  # fmt: skip

    def _drafter(self, number: int) -> SimulatedDrafter | TreeDrafter:
        name, trees = f"drafter-{number}", self.scenario.trees
        answers = self._answers(name)
        if trees is not None:
            return TreeDrafter(name, self.agenda, trees, answers)
        times, kept = self.scenario.draft, self.scenario.kept
        device = self._devices[number] if self.scenario.beside else None
        return SimulatedDrafter(name, self.agenda, times, self._guesses, kept, answers, device)


def config_of(scenario: Scenario, name: str) -> SessionConfig:
    """What a simulated session was opened with: greedy, and without a deadline."""
    limits = replace(Limits(), deadline=FOREVER, max_in_flight=scenario.max_in_flight)
    config = SessionConfig(
        session=name,
        prompt=PROMPT,
        mode=VerifyMode.GREEDY,
        sampling=ResolvedSampling(temperature=0.0, max_tokens=scenario.tokens_of(int(name))),
        seed=scenario.seed,
        method="simulated" if scenario.speculates else "",
        window=scenario.longest_window,
        phrase_scope=SCOPE,
        plain_ahead=scenario.plain_ahead,
        limits=limits,
    )
    return config if scenario.trees is None else _with_trees(config, scenario.trees)


def _with_trees(config: SessionConfig, trees: TreeDrafts) -> SessionConfig:
    """An ephemeral session with all else as served by default."""
    text = trees.text(config.session)
    return replace(
        config,
        prompt=text.prompt,
        sampling=replace(config.sampling, max_tokens=len(text.answer)),
        method=METHOD if config.method else "",
        window=trees.depth,
        num_candidates=SMALL_TREE_WIDTH,
        estimated=True,
        vocab_size=trees.file.vocab_size if trees.file else 0,
        phrase_scope="",
        plain_ahead=True,
    )


def simulate(scenario: Scenario) -> Report:
    """Run a scenario to its end."""
    return Simulation(scenario).run()
