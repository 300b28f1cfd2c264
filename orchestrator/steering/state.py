"""The state of a steered session, as a value; and the turn in which the next one is made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from orchestrator.steering.config import Phase, SessionConfig
from orchestrator.steering.events import Action, NeedWorker, Release
from orchestrator.steering.rounds import Commit, SuspendReason
from services.contract.types import Role, split_methods
from services.scheduling.kv_reserve import reserve_of

MOST_DOUBLINGS = 3
"""Of the pause before another worker is tried, or of the time that it is given."""
FIRST_STEPS = 4.0
"""Steps that a session may be ahead of its store, before anything was measured, beside two."""


class Attached(NamedTuple):
    """A worker that has the session, opened as `opening`, or is to have it by `due`.

    `method`: what it drafts by, of a verifier for itself; empty = it drafts nothing.
    """

    worker: str
    opening: int
    due: float = math.inf
    opened: bool = False
    method: str = ""

    def overdue(self, now: float) -> bool:
        """Whether it should have opened the session by now."""
        return not self.opened and now >= self.due


class Verifiers(NamedTuple):
    """How it went with verifiers so far.

    `openings` in this term. `failures`: refusals and wrong answers since the last step.
    `overdue`: openings in a row that were. `left`: why the last one has the session no more.
    """

    openings: int = 0
    missing_since: float = 0.0
    failures: int = 0
    losses: int = 0
    overdue: int = 0
    left: str = ""


class Drafters(NamedTuple):
    """How it went with drafters so far; drafts of openings before `first` are void."""

    openings: int = 0
    first: int = 0
    failures: int = 0
    losses: int = 0
    not_before: float = 0.0


class Pace(NamedTuple):
    """Moving averages; 0 = not measured.

    In seconds, of a `step`, of what the `store` takes, and of the `lag`: joining steps, and two
    messages. `tokens` of a step.
    """

    step: float = 0.0
    store: float = 0.0
    lag: float = 0.0
    tokens: float = 0.0

    @property
    def steps_behind(self) -> float:
        """Steps until what was decided is stored and the verifier hears of it."""
        return (self.lag + self.store) / self.step if self.step else FIRST_STEPS


class State(NamedTuple):
    """One session. Only `machine.step` makes a new one.

    `committed`: all that was received, which grows only; `stored` of them are acknowledged.
    `storing` is on its way to the store since `storing_since`, and `pending` waits for it.
    `rounds`: counted so far; the last one began at `round_at`. `limit`: how long the output may
    get. `heard_at`: when the verifier last gave a sign of the session. `gone`: why it will be
    suspended once all is emitted.
    """

    config: SessionConfig
    handle: int
    phase: Phase
    committed: tuple[int, ...]
    stored: int
    pending: Commit | None
    storing: Commit | None
    storing_since: float
    rounds: int
    round_at: float
    gone: tuple[SuspendReason, str] | None
    verifier: Attached | None
    drafter: Attached | None
    verifiers: Verifiers
    drafters: Drafters
    limit: int
    pace: Pace
    cap: int | None
    began_at: float
    heard_at: float
    detached_at: float | None
    cached_tokens: int

    @property
    def next_tokens(self) -> int:
        """Tokens of K/V that a verifier reserves for the session at first."""
        config = self.config
        text = len(config.prompt) + len(self.committed)
        return reserve_of(text, config.largest_block, config.most_tokens)

    @property
    def window(self) -> int:
        """Most tokens that the drafter may be ahead now."""
        return capped(self.config.window, self.cap)

    @property
    def drafters_method(self) -> str:
        """What a drafter is asked for: the methods that the verifier has not of its own."""
        return methods_of_a_drafter(self.config, self.verifier)

    @property
    def lacks_worker(self) -> bool:
        """It would take another worker now."""
        return self.verifier is None or (self.drafter is None and self.wants_drafter)

    @property
    def wants_drafter(self) -> bool:
        """There is something to draft, and the drafters have not failed too often."""
        limit = self.config.limits.worker_attempts
        return bool(self.drafters_method) and self.drafters.failures < limit

    @property
    def silent_at(self) -> float | None:
        """When the verifier counts as lost if it says no more; None: it is not to speak now.

        Who has no credit is silent because of us.
        """
        if self.verifier is None or not self.verifier.opened or self.limit <= len(self.committed):
            return None
        return self.heard_at + self.config.limits.verdict_wait


def new_session(config: SessionConfig, handle: int, committed: tuple[int, ...] = ()) -> State:
    """A session before its first event; `committed` is what an earlier owner stored."""
    return State(
        config,
        handle,
        phase=Phase.NEW,
        committed=committed,
        stored=len(committed),
        pending=None,
        storing=None,
        storing_since=0.0,
        rounds=0,
        round_at=-math.inf,
        gone=None,
        verifier=None,
        drafter=None,
        verifiers=Verifiers(),
        drafters=Drafters(),
        limit=0,
        pace=Pace(),
        cap=None,
        began_at=0.0,
        heard_at=0.0,
        detached_at=None,
        cached_tokens=0,
    )


def capped(count: int, cap: int | None) -> int:
    """A count of draft tokens, or what the load allows if that is less."""
    return count if cap is None else min(count, cap)


def methods_of_a_drafter(config: SessionConfig, verifier: Attached | None) -> str:
    """The methods of a session that its verifier does not draft by itself, joined by commas."""
    if verifier is None or not verifier.method:
        return config.method
    local = split_methods(verifier.method)
    return ",".join([method for method in config.methods if method not in local])


@dataclass(slots=True)
class Turn:
    """The next state in the making, in the fields of `State`, and the actions so far.

    Nothing outside a `step` ever sees it.
    """

    config: SessionConfig
    handle: int
    phase: Phase
    committed: tuple[int, ...]
    stored: int
    pending: Commit | None
    storing: Commit | None
    storing_since: float
    rounds: int
    round_at: float
    gone: tuple[SuspendReason, str] | None
    verifier: Attached | None
    drafter: Attached | None
    verifiers: Verifiers
    drafters: Drafters
    limit: int
    pace: Pace
    cap: int | None
    began_at: float
    heard_at: float
    detached_at: float | None
    cached_tokens: int
    now: float = 0.0
    actions: list[Action] = field(default_factory=list)

    def state(self) -> State:
        """What the turn has come to."""
        return State(
            self.config,
            self.handle,
            self.phase,
            self.committed,
            self.stored,
            self.pending,
            self.storing,
            self.storing_since,
            self.rounds,
            self.round_at,
            self.gone,
            self.verifier,
            self.drafter,
            self.verifiers,
            self.drafters,
            self.limit,
            self.pace,
            self.cap,
            self.began_at,
            self.heard_at,
            self.detached_at,
            self.cached_tokens,
        )

    def attached(self, role: Role) -> Attached | None:
        """The worker of a role."""
        return self.verifier if role is Role.VERIFIER else self.drafter

    def release(self, role: Role) -> None:
        """Close the session on the worker of a role, if there is one."""
        attached = self.attached(role)
        if attached is not None:
            self.actions.append(Release(role, attached.worker))
        if role is Role.VERIFIER:
            self.verifier = None
        else:
            self.drafter = None

    def release_all(self) -> None:
        """Close the session on both workers."""
        self.release(Role.VERIFIER)
        self.release(Role.DRAFTER)

    def need_workers(self) -> None:
        """Ask placement for a missing worker; the verifier first, which a drafter may share."""
        if self.verifier is None:
            self.actions.append(NeedWorker(Role.VERIFIER))
        elif self.drafter is None and self._wants_drafter():
            self.actions.append(NeedWorker(Role.DRAFTER))

    def _wants_drafter(self) -> bool:
        drafters, limits = self.drafters, self.config.limits
        if drafters.failures >= limits.worker_attempts or self.now < drafters.not_before:
            return False
        return bool(methods_of_a_drafter(self.config, self.verifier))
