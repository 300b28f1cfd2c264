"""Admission control: sessions and tokens in flight, counted before any work is done.

A session weighs its prompt and its max_tokens, or, where nobody asked for a length, the usual
one: verifiers reserve by need, and one that goes on beyond that may have to wait. Sessions are
admitted up to the limit. Above three quarters of it speculation shrinks, in steps and
for all sessions, to none shortly before the limit: the verifiers' time then goes to plain
rounds, which serve most sessions. Only then are sessions refused.

Where several orchestrators share verifiers, the limit is what the others leave: whoever has
callers may use all that is free, but only a fair share of those who wait is its own.

A tenant may have limits of its own; beyond them only its own sessions are refused. A resumed
session may exceed the common limits by an eighth: finishing goes before beginning. Where
nothing is open it always fits, or it could never go on.

Besides tokens, which are a verifier's memory, a session counts the bytes that its logprobs
may take here while they wait for readers.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Self

from orchestrator.frontdoor.records import Record
from orchestrator.session.tenants import DEFAULT_TENANT, Tenant
from services.contract.errors import InvalidRequest, Overloaded

# Without a limit of its own: as many tokens as the verifiers hold, and as many to wait.
MEMORIES = 2
FULL_UP_TO = 0.75
STEPS = 4
RESUMED_BEYOND = 1.125
SHORTEST_RETRY, USUAL_RETRY, LONGEST_RETRY = 0.25, 1.0, 30.0
RETRY_WINDOW = 10.0
WORK_BURST = 2.0
"""Seconds of CPU that the requests of a tenant may cost at once."""
BYTE_SECONDS = 5e-9
"""CPU seconds per byte of a request before it is here: TLS, HTTP/2, parsing."""


_FIELDS = "sampling.max_tokens", "sampling.logprobs"
"""What asks for tokens, and for memory."""


class Load:
    """The sessions that are open, what they weigh, and how fast they left lately."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left: deque[tuple[float, int]] = deque()
        self.sessions = 0
        self.tokens = 0
        self.memory = 0

    def take(self, tokens: int, memory: int) -> None:
        """One session more; `memory` in bytes."""
        self.sessions += 1
        self.tokens += tokens
        self.memory += memory

    def give_back(self, tokens: int, memory: int) -> None:
        """One session less."""
        self.sessions -= 1
        self.tokens -= tokens
        self.memory -= memory

    def note(self, tokens: int) -> None:
        """A session of this weight came to its end here."""
        self._left.append((self._clock(), tokens))
        self._forget()

    def retry_after(self, missing: float) -> float:
        """Seconds until about so many tokens will have left, going by the last ones."""
        self._forget()
        left = sum(tokens for _, tokens in self._left)
        if not left:
            return USUAL_RETRY
        return min(LONGEST_RETRY, max(SHORTEST_RETRY, RETRY_WINDOW * missing / left))

    def _forget(self) -> None:
        while self._left and self._left[0][0] < self._clock() - RETRY_WINDOW:
            self._left.popleft()


class Reservation:
    """A session's share of the limits, given back exactly once.

    Leaving the `with` block gives it back, unless it was kept for a driver. `record`: its place
    in the store, where it is stored.
    """

    record: Record | None = None

    def __init__(self, loads: tuple[Load, ...], tokens: int, memory: int) -> None:
        self._loads, self._tokens, self._memory = loads, tokens, memory
        self._kept = False
        for load in loads:
            load.take(tokens, memory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._kept:
            self._give_back()

    def keep(self) -> None:
        """The session began; `leave` ends it."""
        self._kept = True

    def leave(self) -> None:
        """The session is gone. May be repeated."""
        for load in self._loads:
            load.note(self._tokens)
        self._give_back()

    def _give_back(self) -> None:
        loads, self._loads = self._loads, ()
        for load in loads:
            load.give_back(self._tokens, self._memory)
        if self.record is not None:
            self.record.give_back()


class Work:
    """The CPU time of each tenant's requests before they are sessions.

    It covers reading messages, tokenizing and compiling. A tenant may use `share` of a core
    over time, and `WORK_BURST` seconds at once; beyond that it is refused, before its messages
    are read, until its debt is paid off. Tokens in flight bound a verifier's work.
    """

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`share` of one core for each tenant: 0.25 = a quarter."""
        self._share, self._clock = share, clock
        # When what a tenant used will be paid off; tenants come from a file.
        self._paid_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def spend(self, tenant: str, seconds: float) -> None:
        """A request took so much. Safe in any thread."""
        with self._lock:
            begins = max(self._clock(), self._paid_at.get(tenant, 0.0))
            self._paid_at[tenant] = begins + seconds / self._share

    @contextmanager
    def spent(self, tenant: str, size: int) -> Iterator[None]:
        """Charge the reading of a request of `size` bytes in here; safe in any thread."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spend(tenant, time.perf_counter() - began + size * BYTE_SECONDS)

    def owed(self, tenant: str) -> float:
        """Seconds until the tenant is admitted again; 0 = now."""
        ahead = self._paid_at.get(tenant, 0.0) - self._clock()
        return max(0.0, ahead - WORK_BURST / self._share)


class _Bound(NamedTuple):
    """A load and its limits; `whose` they are, in words."""

    load: Load
    sessions: float
    tokens: float
    memory: float = math.inf
    whose: str = ""
    most: float = math.inf
    """Of `tokens`, at any time."""


class Admission:
    """The sessions of this orchestrator, of all tenants and of each."""

    def __init__(
        self,
        max_sessions: int,
        max_tokens: int | None,
        memory: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        max_memory: float = math.inf,
        room: Callable[[], float] = lambda: math.inf,
    ) -> None:
        """`memory`: tokens that the verifiers hold (0: not known), for `max_tokens` None.

        `max_memory`: bytes that the logprobs of all sessions may take. `room`: tokens that other
        orchestrators leave of `MEMORIES` times the memory.
        """
        self._max_sessions, self._max_tokens = max_sessions, max_tokens
        self._max_memory = max_memory
        self._memory, self._room, self._clock = memory, room, clock
        self._all = Load(clock)
        # Tenants come from a file: no caller can add one.
        self._tenants: dict[str, Load] = {}

    @property
    def sessions(self) -> int:
        """Open sessions of all tenants."""
        return self._all.sessions

    @property
    def tokens(self) -> int:
        """Their weight."""
        return self._all.tokens

    @property
    def limit(self) -> float:
        """Most tokens in flight now."""
        return min(self._most, self._room())

    @property
    def _most(self) -> float:
        """Most tokens in flight where no other orchestrator has any."""
        return self._max_tokens or MEMORIES * self._memory() or math.inf

    @property
    def speculation(self) -> float:
        """The share of its window that a session may use now, from 1 down to 0."""
        free = max(0.0, 1 - self.tokens / self.limit)
        return min(STEPS, math.floor(STEPS * free / (1 - FULL_UP_TO))) / STEPS

    def sessions_of(self, tenant: str) -> int:
        """Open sessions of one tenant."""
        return self._tenants[tenant].sessions if tenant in self._tenants else 0

    def most_tokens(self, tenant: Tenant = DEFAULT_TENANT) -> float:
        """What of one kind may ever be in flight together."""
        return _most(self._bounds(tenant, 1))

    def enter(
        self,
        prompt: int,
        max_tokens: int,
        tenant: Tenant = DEFAULT_TENANT,
        memory: int = 0,
        fields: tuple[str, str] = _FIELDS,
    ) -> Reservation:
        """Let a new session in, or raise Overloaded; InvalidRequest if it never fits.

        `memory`: bytes that its logprobs may come to take. `fields`: what asks for its tokens, and
        for these.
        """
        return self.enter_together(1, prompt, max_tokens, tenant, memory, fields)[0]

    def enter_together(
        self,
        count: int,
        prompt: int,
        max_tokens: int,
        tenant: Tenant,
        memory: int = 0,
        fields: tuple[str, str] = _FIELDS,
    ) -> list[Reservation]:
        """Let so many sessions of this kind in, all or none; the rest as `enter`."""
        tokens = prompt + max_tokens
        bounds = self._bounds(tenant, 1)
        limit = _most(bounds)
        if tokens > limit:
            allowed = f"at most {limit:.0f} together with the {prompt} tokens of the prompt"
            raise InvalidRequest(fields[0], max_tokens, allowed)
        if count * memory > self._max_memory:
            allowed = f"what takes at most {self._max_memory:.0f} bytes"
            raise InvalidRequest(fields[1], f"{count * memory} bytes of them", allowed)
        for bound in bounds:
            _require_possible(bound, count, tokens)
        for bound in bounds:
            _require_room(bound, count * tokens, count * memory, count)
        loads = tuple(bound.load for bound in bounds)
        return [Reservation(loads, tokens, memory) for _ in range(count)]

    def come_back(
        self, tokens: int, tenant: Tenant = DEFAULT_TENANT, memory: int = 0
    ) -> Reservation:
        """Admit a resumed session, or raise Overloaded."""
        bounds = self._bounds(tenant, RESUMED_BEYOND)
        for bound in bounds:
            if bound.load.sessions:
                _require_room(bound, tokens, memory)
        return Reservation(tuple(bound.load for bound in bounds), tokens, memory)

    def _bounds(self, tenant: Tenant, beyond: float) -> tuple[_Bound, _Bound]:
        own = self._tenants.setdefault(tenant.name, Load(self._clock))
        limits = tenant.limits
        return (
            _Bound(
                own,
                limits.max_sessions or math.inf,
                limits.max_tokens_in_flight or math.inf,
                whose=" of this tenant",
                most=limits.max_tokens_in_flight or math.inf,
            ),
            _Bound(
                self._all,
                beyond * self._max_sessions,
                beyond * self.limit,
                beyond * self._max_memory,
                most=self._most,
            ),
        )


def _most(bounds: Sequence[_Bound]) -> float:
    return min(bound.most for bound in bounds)


def _require_possible(bound: _Bound, count: int, tokens: int) -> None:
    """Raise InvalidRequest for completions that would not fit even alone."""
    if count > bound.sessions:
        allowed = f"at most {bound.sessions:.0f}, the limit of sessions{bound.whose}"
        raise InvalidRequest("n", count, allowed)
    if count * tokens > bound.most:
        most, limit = int(bound.most // tokens), f"{bound.most:.0f} tokens{bound.whose}"
        raise InvalidRequest("n", count, f"at most {most} of {tokens} tokens each: {limit} fit")


def _require_room(bound: _Bound, tokens: int, memory: int, count: int = 1) -> None:
    load, whose = bound.load, bound.whose
    if load.sessions + count > bound.sessions:
        full = f"{load.sessions} sessions{whose} are open, "
        more = f"{count} more would pass the limit of {bound.sessions:.0f}"
        words = full + ("which is the limit" if count == 1 else more)
        raise Overloaded(words, load.retry_after(tokens))
    if load.tokens + tokens > bound.tokens:
        raise Overloaded(
            f"{load.tokens} tokens{whose} are in flight, {tokens} more would pass the limit of "
            f"{bound.tokens:.0f}",
            load.retry_after(load.tokens + tokens - bound.tokens),
        )
    if memory and load.memory + memory > bound.memory:
        raise Overloaded(
            f"the logprobs of {load.sessions} sessions may take {load.memory} bytes, {memory} more "
            f"would pass the limit of {bound.memory:.0f}",
            load.retry_after(tokens),
        )
