"""Steered sessions, the hub and simulated workers in one event loop: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.session.output import Prefix
from orchestrator.session.ports import NewSession, SessionKey
from orchestrator.steering.config import Limits, SessionConfig
from orchestrator.steering.driver import Driver
from orchestrator.steering.hub import Hub
from orchestrator.steering.state import new_session
from orchestrator.store.null_store import NullStore
from services.contract.frames import (
    DraftFrame,
    DraftRow,
    Grants,
    StepFrame,
    draft_frame,
    draft_rows,
    granted,
    step_frame,
    step_rows,
)
from services.contract.types import (
    EMPTY_HASH,
    DraftTree,
    FailureReason,
    ResolvedSampling,
    Role,
    VerifyMode,
    WorkerDescription,
    extend_hash,
)
from services.contract.worker_messages import (
    SessionGone,
    SessionStarted,
    SetDraftedFor,
    SetWindow,
    StartDraft,
    StartVerify,
)
from tests.orchestrator.request_kit import sampled
from tests.orchestrator.text_kit import tokenizer
from tests.steering.actors import Book, SimDraft, SimDrafter, SimVerifier, allowed
from tests.steering.test_driver import FakeRecorder
from tests.tries import tries

WORDS = tokenizer()
LENGTH = 30


@dataclass
class Workers:
    """Two verifiers and two drafters of many sessions, behind links that keep the order."""

    mode: VerifyMode
    random: random.Random
    books: dict[int, Book] = field(default_factory=dict)
    hub: Hub | None = None
    verifiers: dict[str, dict[int, SimVerifier]] = field(default_factory=dict)
    drafters: dict[str, dict[int, SimDrafter]] = field(default_factory=dict)
    texts: dict[tuple[int, object, int], SimDraft] = field(default_factory=dict)
    steps: int = 0
    down: bool = False

    def __post_init__(self) -> None:
        for number in range(2):
            self.verifiers[f"v{number}"], self.drafters[f"d{number}"] = {}, {}

    def _book(self, session: int) -> Book:
        return self.books.setdefault(session, Book(self.mode))

    # --- placement --------------------------------------------------------------------

    def place(self, wanted) -> WorkerDescription | None:
        there = self.verifiers if wanted.role is Role.VERIFIER else self.drafters
        name = self.random.choice(sorted(there))
        return WorkerDescription(name, wanted.role)

    def opening_s(self, worker: str, tokens: int) -> float:
        return 0.0

    # --- links ------------------------------------------------------------------------

    def send(self, worker: str, session: int, command) -> None:
        asyncio.get_running_loop().call_soon(self._arrive, worker, session, command)

    def forward(self, worker: str, command) -> None:
        asyncio.get_running_loop().call_soon(self._arrive, worker, 0, command)

    def release(self, worker: str, session: int) -> None:
        asyncio.get_running_loop().call_soon(self._forget, worker, session)

    def cut(self, worker: str, reason: str) -> None:
        raise AssertionError(f"{worker}: {reason}")

    def _forget(self, worker: str, session: int) -> None:
        self.verifiers.get(worker, {}).pop(session, None)
        self.drafters.get(worker, {}).pop(session, None)

    def _arrive(self, worker: str, session: int, command) -> None:
        own, drafting = self.verifiers.get(worker, {}), self.drafters.get(worker, {})
        match command:
            case StartVerify():
                sim = own.setdefault(session, SimVerifier(self.mode, session, self._book(session)))
                sim.open(command)
                sim.started = True
                self._heard(worker, Role.VERIFIER, SessionStarted(session, command.opening))
            case StartDraft():
                accuracy = self.random.choice([0.5, 0.9])
                sim_drafter = SimDrafter(accuracy, session, self._book(session))
                drafting.setdefault(session, sim_drafter).open(command)
                self._heard(worker, Role.DRAFTER, SessionStarted(session, command.opening))
            case Grants():
                for handle, limit in granted(command):
                    if handle in own:
                        own[handle].grant(limit)
            case DraftFrame():
                for row in draft_rows(command):
                    if row.handle in own:
                        own[row.handle].put(self.texts[row.handle, row.name, row.position])
            case StepFrame():
                for step in step_rows(command):
                    drafter = drafting.get(step.handle)
                    if drafter is not None and drafter.opened and not drafter.take(step):
                        gone = SessionGone(
                            step.handle, drafter.opened.opening, FailureReason.UNKNOWN_SESSION
                        )
                        self._heard(worker, Role.DRAFTER, gone)
            case SetWindow() | SetDraftedFor():
                pass

    def _heard(self, worker: str, role: Role, event) -> None:
        assert self.hub is not None
        self.hub.heard(worker, role, event)

    # --- work -------------------------------------------------------------------------

    async def work(self, losses: float) -> None:
        while not self.down:
            await asyncio.sleep(0)
            for name in self.verifiers:
                self._step(name)
            for name in self.drafters:
                self._draft(name)
            if self.random.random() < losses:
                self._lose()

    def _step(self, name: str) -> None:
        sims = [sim for sim in self.verifiers[name].values() if sim.may_step]
        if not sims:
            return
        self.steps += 1
        rows = [sim.step() for sim in sims]
        self._heard(name, Role.VERIFIER, step_frame(StepFrame(self.steps, step_ms=1.0), rows))

    def _draft(self, name: str) -> None:
        rows = []
        for handle, sim in self.drafters[name].items():
            if (draft := sim.draft()) is not None:
                place = len(draft.before)
                self.texts[handle, draft.name, place] = draft
                prefix = extend_hash(EMPTY_HASH, draft.before)
                rows.append(DraftRow(handle, draft.name, place, prefix, DraftTree(draft.tokens)))
        if rows:
            self._heard(name, Role.DRAFTER, draft_frame(rows))

    def _lose(self) -> None:
        """A worker dies with what it knew, and is back at once."""
        role = self.random.choice(list(Role))
        there = self.verifiers if role is Role.VERIFIER else self.drafters
        name = self.random.choice(sorted(there))
        handles, there[name] = list(there[name]), {}  # type: ignore[assignment]
        assert self.hub is not None
        self.hub.lost(name, role, handles, "it died")


def _driver(workers: Workers, number: int, ended: list) -> Driver:
    spec = sampled(temperature=0.0, max_tokens=LENGTH)
    key = SessionKey("tenant", f"session-{number}")
    config = SessionConfig(
        key.name, spec.prompt, workers.mode, ResolvedSampling(max_tokens=LENGTH), number,
        method="model", window=4, limits=Limits(worker_attempts=1000, drafter_backoff=0.0),
    )  # fmt: skip
    record = NewSession("digest", spec.prompt, spec.seed, "owner")
    assert workers.hub is not None
    return Driver(
        key, spec, new_session(config, 0), spec.text_stream(WORDS), record,
        hub=workers.hub, workers=workers, store=NullStore(), recorder=FakeRecorder(),
        on_end=ended.append,
    )  # fmt: skip


async def _read(driver: Driver) -> list[int]:
    told: list[int] = []
    async for delivery in driver.output.follow(Prefix()):
        assert delivery.offset == len(told)
        told += delivery.token_ids
    return told


async def _run(mode: VerifyMode, seed: int, losses: float, cpu: float) -> None:
    workers = Workers(mode, random.Random(seed))
    spent = iter(range(10**9))
    # So many seconds of this thread for a flush: steps are joined accordingly.
    workers.hub = Hub(workers, cpu=lambda: cpu * next(spent))
    ended: list[Driver] = []
    drivers = [_driver(workers, number, ended) for number in range(5)]
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        work = group.create_task(workers.work(losses))
        for driver in drivers:
            driver.begin()
        texts = [await _read(driver) for driver in drivers]
        workers.down = True
        await work
    for text in texts:
        assert len(text) == LENGTH
        assert all(one in allowed(mode, tuple(text[:i])) for i, one in enumerate(text))
    assert len(ended) == len(drivers)
    assert not any(workers.verifiers.values())


@tries(30)
@given(
    mode=st.sampled_from(VerifyMode),
    seed=st.integers(0, 2**32),
    losses=st.sampled_from([0.0, 0.05]),
)
def test_every_session_is_told_a_text_of_the_target_whoever_dies(mode, seed, losses):
    asyncio.run(_run(mode, seed, losses, cpu=0.0))


@pytest.mark.parametrize("mode", list(VerifyMode))
@pytest.mark.parametrize("losses", [0.0, 0.05])
def test_so_it_is_where_steps_are_joined(mode, losses):
    asyncio.run(_run(mode, 7, losses, cpu=0.002))
