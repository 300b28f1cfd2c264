"""Scores of continuations: sessions of a verifier that generate nothing, and are stored nowhere.

    each continuation    a session of context and continuation, which closes itself
    a call               at most `AT_ONCE` of them at a time, all on one verifier: there they share
                         the context's K/V, as completions of one prompt do, and what is scored is
                         closed behind the next one, which takes it over
    a lost verifier      the next attempt goes to another one; what was told is told again

All in the same steps as blocks and prompts: to the verifier they are prompts.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from orchestrator.session.logprobs import PackedRow, pack_row
from orchestrator.session.ports import Workers
from orchestrator.steering.config import Limits
from orchestrator.steering.logprobs import new_rows, rows_fit
from orchestrator.steering.openings import OPENING_FACTOR
from orchestrator.steering.ports import Hub, Said, Taken
from orchestrator.workers.placement import Wanted
from services.contract.errors import DeadlinePassed, Draining, NoWorker, Overloaded
from services.contract.types import (
    SCORES,
    FailureReason,
    ResolvedSampling,
    Role,
    VerifyMode,
    WorkerDescription,
)
from services.contract.worker_messages import PromptScores, SessionGone, SessionStarted, StartVerify

AT_ONCE = 8
"""Continuations of one call that a verifier has at a time."""
ASK_AGAIN = 0.25
"""Seconds until a worker is asked for again, where none has room."""


class Verifiers(Workers, Protocol):
    """What scoring needs of the pool."""

    def takes(self, worker: str) -> bool:
        """Whether the worker is connected, and does not drain."""


class Lost(Exception):
    """An attempt that another one may follow; `busy`: it cost none."""

    def __init__(self, reason: str, *, busy: bool = False) -> None:
        self.busy = busy
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Scored:
    """What is to be scored: the tokens of `own`, behind those of `context`.

    `scope`, `forks`: who may share its K/V, as `StartVerify` has them.
    """

    context: tuple[int, ...]
    own: tuple[int, ...]
    top: int
    scope: str
    forks: str

    @property
    def size(self) -> int:
        """Tokens of both."""
        return len(self.context) + len(self.own)


@dataclass(slots=True, eq=False)
class Attempt:
    """One session on a verifier, as the hub sees it. It may take no steps: its limit is 0.

    `heard`: when each verifier last said something of one of them.
    """

    wanted: Scored
    vocab_size: int
    heard: dict[str, float]
    done: asyncio.Future[None]
    rows: list[PackedRow] = field(default_factory=list)

    def took(self, worker: str, _taken: Sequence[Taken], /) -> None:
        """Never called."""
        raise AssertionError(f"{worker} generates where it is to read")

    def lost(self, _worker: str, _role: Role, reason: str, /) -> None:
        """The verifier is gone."""
        self.end(Lost(reason))

    def hear(self, worker: str, _role: Role, event: Said, /) -> None:
        """Absorb what the verifier says."""
        if self.done.done():
            return
        self.heard[worker] = self.done.get_loop().time()
        match event:
            case PromptScores():
                self._take(event)
            case SessionStarted():
                whole = len(self.rows) == len(self.wanted.own)
                self.end(None if whole else Lost("it left tokens out"))
            case SessionGone(_, _, reason, message):
                self.end(_failure(reason, message))

    def _take(self, scores: PromptScores) -> None:
        known = len(self.wanted.context) + len(self.rows)
        rows = new_rows(scores.rows, scores.position, known, self.wanted.size - known)
        # The likeliest token is always asked for: it says whether a text is greedy.
        if rows is None or not rows_fit(rows, max(1, self.wanted.top), self.vocab_size):
            self.end(Lost("what it said of a text cannot be"))
        else:
            self.rows += map(pack_row, rows)

    def end(self, error: Exception | None) -> None:
        """It is over, well or not."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


def _failure(reason: FailureReason, message: str) -> Exception:
    said = message or reason.name
    if reason in (FailureReason.INVALID, FailureReason.UNSUPPORTED) or reason.for_good:
        return NoWorker(f"a verifier refuses: {said}")
    return Lost(said, busy=reason is FailureReason.CAPACITY)


class Scoring:
    """All scores of one orchestrator. Its methods belong to the event loop."""

    def __init__(self, verifiers: Verifiers, limits: Limits, hub: Hub) -> None:
        """`hub`: where sessions have handles, the way to the verifiers."""
        self.verifiers, self.limits, self._hub = verifiers, limits, hub
        self.draining = False
        self._attempts: set[Attempt] = set()
        self._heard: dict[str, float] = {}

    async def score(
        self, tenant: str, texts: Sequence[Scored], at_once: int, traceparent: str = ""
    ) -> list[list[PackedRow]]:
        """The rows of each text. Raises NoWorker, Overloaded, DeadlinePassed, Draining."""
        call = _Call(self, tenant, asyncio.Semaphore(at_once), traceparent)
        tasks = [asyncio.ensure_future(call.score(text)) for text in texts]
        try:
            async with asyncio.timeout(self.limits.deadline):
                return await asyncio.gather(*tasks)
        except TimeoutError:
            seconds = f"{self.limits.deadline:g} s"
            raise DeadlinePassed(f"the scores took longer than {seconds}; ask for fewer") from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            call.end()

    def drain(self) -> None:
        """End what is at work; it may be asked of another orchestrator."""
        self.draining = True
        for attempt in self._attempts:
            attempt.end(_leaving())

    async def attempt(
        self, name: str, verifier: WorkerDescription, wanted: Scored, parent: str
    ) -> tuple[list[PackedRow], Callable[[], None]]:
        """The rows of a text by one verifier, and how to close it there. Raises Lost."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        attempt = Attempt(wanted, verifier.vocab_size, self._heard, done)
        self._attempts.add(attempt)
        worker, hub = verifier.worker_id, self._hub
        handle = hub.enter(attempt, verifier.vocab_size)
        hub.verified_by(handle, worker, opening=1)
        hub.send(worker, _start(handle, name, wanted, parent))
        try:
            await self._until_done(attempt, worker)
        except BaseException:
            hub.leave(handle)
            raise
        finally:
            self._attempts.remove(attempt)
        return attempt.rows, partial(hub.leave, handle)

    async def _until_done(self, attempt: Attempt, worker: str) -> None:
        """Wait, for as long as its verifier says something, of this one or of another."""
        loop = asyncio.get_running_loop()
        self._heard[worker] = loop.time()
        while not attempt.done.done():
            queued = [one.wanted.size for one in self._attempts]
            explained = self.verifiers.opening_s(worker, sum(queued))
            until = self._heard[worker] + self.limits.opening_wait + OPENING_FACTOR * explained
            if until <= loop.time():
                raise Lost("it did not answer in time")
            await asyncio.wait((attempt.done,), timeout=until - loop.time())
        attempt.done.result()


class _Call:
    """The texts of one call, which share a verifier, and the attempts."""

    def __init__(
        self, scoring: Scoring, tenant: str, turns: asyncio.Semaphore, traceparent: str
    ) -> None:
        self._scoring, self._tenant, self._turns = scoring, tenant, turns
        self._traceparent = traceparent
        self._worker: WorkerDescription | None = None
        self._fingerprint = ""
        self._left: set[str] = set()
        self._scored: Callable[[], None] | None = None
        """Closes the last text that was scored, which keeps the context there."""

    async def score(self, wanted: Scored) -> list[PackedRow]:
        """The rows of one text."""
        async with self._turns:
            loop, wait = asyncio.get_running_loop(), self._scoring.limits.verifier_wait
            busy, failures, until = "", 0, 0.0
            while True:
                if not busy:
                    until = loop.time() + wait
                worker = await self._find(wanted, busy, until)
                name = f"{self._tenant}/score/{secrets.token_hex(8)}"
                try:
                    attempt = self._scoring.attempt(name, worker, wanted, self._traceparent)
                    rows, close = await attempt
                except Lost as lost:
                    self._leave(worker)
                    busy, failures = str(lost) if lost.busy else "", failures + (not lost.busy)
                    if failures >= self._scoring.limits.worker_attempts:
                        reason = f"{failures} verifiers failed, at last: {lost}"
                        raise NoWorker(reason) from None
                else:
                    self.end()
                    self._scored = close
                    return rows
                if busy:
                    await asyncio.sleep(ASK_AGAIN)

    def end(self) -> None:
        """The context need not be kept any more by what was scored."""
        if self._scored is not None:
            self._scored()
        self._scored = None

    async def _find(self, wanted: Scored, busy: str, until: float) -> WorkerDescription:
        """The verifier of this call; a new one where there is none. Waits for room.

        `busy`: what the last one said, that had none; then it is in vain after `until`.
        """
        loop, verifiers = asyncio.get_running_loop(), self._scoring.verifiers
        limits = self._scoring.limits
        if self._worker is not None and not verifiers.takes(self._worker.worker_id):
            self._worker = None
        while self._worker is None:
            if self._scoring.draining:
                raise _leaving()
            late = loop.time() > until
            placed = None if busy and late else verifiers.place(self._wanted(wanted))
            if placed is not None:
                self._worker, self._fingerprint = placed, placed.model_fingerprint
            elif late:
                raise (Overloaded if busy else NoWorker)(
                    f"no verifier could take a text of {wanted.size} tokens to score for "
                    f"{limits.verifier_wait:g} s"
                )
            else:
                await asyncio.sleep(ASK_AGAIN)
        return self._worker

    def _wanted(self, wanted: Scored) -> Wanted:
        return Wanted(
            Role.VERIFIER,
            wanted.size,
            most_tokens=wanted.size,
            capabilities=(SCORES,),
            # All of a call by the same model.
            model_fingerprint=self._fingerprint,
            avoid=tuple(self._left),
            text=(wanted.context, wanted.own),
            cache_scope=wanted.scope,
        )

    def _leave(self, worker: WorkerDescription) -> None:
        """Do without a verifier from now on, if there is another one."""
        if self._worker is worker:
            self._worker = None
            self._left.add(worker.worker_id)


def _leaving() -> Draining:
    return Draining("this orchestrator stops; ask another one")


def _start(handle: int, name: str, wanted: Scored, traceparent: str) -> StartVerify:
    return StartVerify(
        handle,
        1,
        name,
        term=1,
        prompt=(*wanted.context, *wanted.own),
        output=(),
        limit=0,
        mode=VerifyMode.GREEDY,
        sampling=ResolvedSampling(max_tokens=1, prompt_logprobs=max(1, wanted.top)),
        seed=0,
        window=0,
        traceparent=traceparent,
        cache_scope=wanted.scope,
        fork_scope=wanted.forks,
        score_from=len(wanted.context),
    )
