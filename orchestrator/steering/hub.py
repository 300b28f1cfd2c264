"""Between the links to all workers and the sessions: routes frames, collects what they bring.

A frame of a verifier is looked at once, session by session. What holds goes on to the drafters of
its sessions, as it came where they are all at one, or later where they rest (see `resting`). It is
collected for the sessions, which take it at once, or joined (see `rhythm`). If one row of it is
impossible, none counts, and the link is cut: its sessions go on elsewhere, as if the worker had
died, and that of the row has been refused. So it is with drafts. Of a message that does not add up
nobody knows whose it was: it refuses all of them.

A session knows of everything that was received before it hears that a worker failed.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain, count
from typing import Protocol

from orchestrator.steering.ports import Steered, StepFacts, Taken, Told
from orchestrator.steering.resting import Brought, Resting
from orchestrator.steering.rhythm import Rhythm
from orchestrator.steering.routes import Route
from orchestrator.steering.slices import Slices
from services.contract.frames import (
    DraftFrame,
    StepFrame,
    WaitReason,
    grants,
    select_drafts,
    select_steps,
    step_rows,
    unpack,
)
from services.contract.types import Draining, FailureReason, Progress, Role
from services.contract.worker_messages import (
    DrafterCommand,
    DrafterEvent,
    EndSession,
    PromptScores,
    SessionGone,
    SessionStarted,
    StartDraft,
    TextStates,
    VerifierCommand,
    VerifierEvent,
    Waiting,
)

_MEMORY = 0.9
_FIRST_HOP = 0.0005
_LONGEST_HOP = 0.02
"""Seconds; clocks of two machines differ by more than a message takes."""
GATHER = 0.002
"""Seconds for which credit is gathered; who has some is some steps from its end."""
_EARLY = 0.0005
"""Seconds by which steps are taken before they are due, together with others."""


class Links(Protocol):
    """The links, by the ids of their workers. One that is gone swallows what is sent."""

    def send(self, worker: str, handle: int, command: DrafterCommand | VerifierCommand) -> None:
        """Send a command of a session, which then counts as one of the worker's."""
        ...

    def forward(self, worker: str, command: DrafterCommand | VerifierCommand) -> None:
        """Send what concerns many sessions."""
        ...

    def release(self, worker: str, handle: int) -> None:
        """Close a session on the worker, once."""
        ...

    def cut(self, worker: str, reason: str) -> None:
        """Give a worker up, which did what it must not."""
        ...


class Timers(Protocol):
    """As much of an event loop as is used."""

    def call_soon(self, callback: Callable[[], object]) -> object:
        """Call it behind what happens now."""
        ...

    def call_later(self, delay: float, callback: Callable[[], object]) -> object:
        """Call it in so many seconds."""
        ...


class Hub:
    """Every session of this orchestrator, by its handle; see `ports.Hub`. For one event loop."""

    def __init__(
        self,
        links: Links,
        timers: Timers | None = None,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`clock` is the sessions'; `cpu`: seconds that this thread has computed."""
        self._links, self._timers = links, timers or asyncio.get_running_loop()
        self._slices = Slices(self._timers, clock)
        self._clock, self._cpu, self._wall_ns = clock, cpu, wall_ns
        self._routes: dict[int, Route] = {}
        self._handles = count(1)
        self._rhythm = Rhythm()
        self._resting = Resting(links.forward)
        self._due: list[tuple[float, int]] = []
        self._waking = False
        # What is to be granted, by verifier.
        self._granted: dict[str, dict[int, int]] = {}
        self.hop = _FIRST_HOP

    @property
    def interval(self) -> float:
        """Seconds for which a session's steps are joined now; 0 = they come at once."""
        return self._rhythm.interval

    # --- what sessions say ------------------------------------------------------------

    def enter(self, session: Steered, vocab_size: int = 0) -> int:
        """A handle for a session, which no other one had or will have."""
        handle = next(self._handles)
        self._routes[handle] = Route(handle, session, vocab_size)
        return handle

    def leave(self, handle: int) -> None:
        """The session is over here, and at its workers. May be repeated."""
        if (route := self._routes.pop(handle, None)) is not None:
            route.pending = []
            self._resting.tell([route])
            for worker in filter(None, (route.verifier, route.drafter)):
                self._links.release(worker, handle)

    def send(self, worker: str, command: Told) -> None:
        """Send a command of a session. A drafter is opened with all that was received."""
        handle = command.handle
        if isinstance(command, EndSession):
            self._links.release(worker, handle)
            return
        route = self._routes[handle]
        if isinstance(command, StartDraft):
            route.draft_opening, route.ahead = command.opening, command.window
            unknown = chain.from_iterable(taken.row.tokens for taken in route.pending)
            command = replace(command, output=(*command.output, *unknown))
        self._links.send(worker, handle, command)

    def verified_by(
        self,
        handle: int,
        worker: str | None,
        opening: int = 0,
        received: int = 0,
        limit: int = 0,
        window: int = 0,
    ) -> None:
        """Whose steps count from now on, behind so many tokens. What was not taken is nobody's."""
        route = self._routes[handle]
        self._resting.tell([route])
        route.verifier, route.opening, route.received = worker or "", opening, received
        # A grant from before may be in the opening's message, behind it.
        route.limit, route.window = max(limit, route.limit), window
        route.pending, route.drafts = [], 0

    def drafted_by(self, handle: int, worker: str | None) -> None:
        """Who gets the session's steps, and whose drafts go to its verifier."""
        route = self._routes[handle]
        self._resting.tell([route])
        route.drafter, route.drafts = worker or "", 0

    def grant(self, handle: int, limit: int) -> None:
        """How long the output may get; goes out with others, soon."""
        route = self._routes[handle]
        if limit <= route.limit or not route.verifier:
            return
        route.limit = limit
        if not self._granted:
            self._timers.call_later(GATHER, self._grant)
        self._granted.setdefault(route.verifier, {})[handle] = limit

    def _grant(self) -> None:
        granted, self._granted = self._granted, {}
        for worker, limits in granted.items():
            self._links.forward(worker, grants(list(limits.items())))

    def flush(self, handle: int) -> None:
        """Let the session take at once what is held back for it."""
        if (route := self._routes.get(handle)) is not None:
            self._flush(route)

    def soon(self, act: Callable[[], object]) -> None:
        """Do this for a session, behind what others have to do, in slices; see `slices`."""
        self._slices.add(act)

    # --- what workers say -------------------------------------------------------------

    def heard(self, worker: str, role: Role, event: VerifierEvent | DrafterEvent) -> None:
        """What came over a link."""
        match event:
            case StepFrame():
                self._steps(worker, event)
            case DraftFrame():
                self._drafts(worker, event)
            case Waiting():
                self._waiting(worker, event)
            case SessionStarted() | SessionGone() | TextStates() | PromptScores():
                self._said(worker, role, event)
            case Progress() | Draining():
                pass  # Of no session.

    def lost(
        self,
        worker: str,
        role: Role,
        handles: Iterable[int],
        reason: str,
        *,
        faulty: bool = False,
    ) -> None:
        """A worker is gone, and these sessions with it.

        `faulty`: it said what cannot be, and nobody knows of whom: each counts it as an attempt.
        """
        for handle in handles:
            if (route := self._at(worker, role, handle)) is None:
                continue
            if faulty:
                self._fail(route, role, worker, reason)
            else:
                self._flush(route)
                route.session.lost(worker, role, reason)

    def _said(
        self,
        worker: str,
        role: Role,
        event: SessionStarted | SessionGone | TextStates | PromptScores,
    ) -> None:
        if (route := self._at(worker, role, event.handle)) is None:
            return
        self._flush(route)
        last = route.opening if role is Role.VERIFIER else route.draft_opening
        if isinstance(event, SessionGone) and event.opening == last:
            self._links.release(worker, event.handle)
        route.session.hear(worker, role, event)

    def _waiting(self, worker: str, event: Waiting) -> None:
        for handle, reason in zip(unpack("I", event.handles), event.reasons, strict=True):
            if (route := self._at(worker, Role.VERIFIER, handle)) is not None:
                route.session.hear(worker, Role.VERIFIER, WaitReason(reason))

    def _at(self, worker: str, role: Role, handle: int) -> Route | None:
        """The session, if the worker is the one it has now."""
        route = self._routes.get(handle)
        if route is None:
            return None
        return (
            route
            if worker == (route.verifier if role is Role.VERIFIER else route.drafter)
            else None
        )

    # --- frames -----------------------------------------------------------------------

    def _steps(self, worker: str, frame: StepFrame) -> None:
        now, routes = self._clock(), self._routes
        facts = StepFacts(
            frame.step, frame.started_ns, frame.step_ms, frame.sessions, frame.rows, now
        )
        counted: list[tuple[Route, Taken]] = []
        drafters: dict[str, list[Brought]] = {}
        for place, row in enumerate(step_rows(frame)):
            route = routes.get(row.handle)
            if route is None or route.verifier != worker or row.opening < route.opening:
                continue
            if fault := route.fault(row):
                self._refuse(route, Role.VERIFIER, worker, fault)
                return
            window = frame.windows[place] if frame.windows else None
            counted.append((route, Taken(row, facts, window)))
            if route.drafter:
                drafters.setdefault(route.drafter, []).append((place, route, row))
        for drafter, chosen in drafters.items():
            if not self._resting.keeps(frame, chosen):
                selected = select_steps(frame, [place for place, *_ in chosen])
                self._links.forward(drafter, selected)
        for route, taken in counted:
            route.take(taken)
        self._measure(frame)
        self._collect([route for route, _ in counted])

    def _drafts(self, worker: str, frame: DraftFrame) -> None:
        tokens, counts = unpack("I", frame.tokens), unpack("H", frame.counts)
        highest = max(tokens, default=0)
        verifiers: dict[str, list[int]] = {}
        every = zip(
            frame.every_handle(),
            unpack("I", frame.openings),
            unpack("I", frame.positions),
            counts,
            accumulate(counts),
            strict=True,
        )
        for place, (handle, opening, position, size, end) in enumerate(every):
            route = self._routes.get(handle)
            if route is None or route.drafter != worker or opening < route.draft_opening:
                continue
            own = highest
            if 0 < route.vocab_size <= highest:  # In this draft, or in another one of the frame.
                own = max(tokens[end - size : end], default=0)
            if fault := route.draft_fault(opening, position, size, own):
                self._refuse(route, Role.DRAFTER, worker, fault)
                return
            route.drafts += 1
            if route.verifier:
                verifiers.setdefault(route.verifier, []).append(place)
        for verifier, chosen in verifiers.items():
            self._links.forward(verifier, select_drafts(frame, chosen))

    def _refuse(self, route: Route, role: Role, worker: str, fault: str) -> None:
        """Cut a worker off; the session of which it said what cannot be counts it as an attempt."""
        self._fail(route, role, worker, fault)
        self._links.cut(worker, fault)

    def _fail(self, route: Route, role: Role, worker: str, fault: str) -> None:
        """What a worker did with the session was wrong."""
        last = route.opening if role is Role.VERIFIER else route.draft_opening
        self._said(worker, role, SessionGone(route.handle, last, FailureReason.INTERNAL, fault))

    def _measure(self, frame: StepFrame) -> None:
        """How long the frame was on its way, as far as two clocks tell."""
        passed = (self._wall_ns() - frame.started_ns) / 1e9 - frame.step_ms / 1e3
        self.hop += (1 - _MEMORY) * (min(max(passed, 0.0), _LONGEST_HOP) - self.hop)

    # --- what sessions take -----------------------------------------------------------

    def _collect(self, routes: Iterable[Route]) -> None:
        """Sessions take what they have got, now or when it is due, behind what workers get."""
        now = self._clock()
        for route in routes:
            if route.due <= now:
                self.soon(partial(self._flush, route))
            elif not route.waits:
                route.waits = True
                heapq.heappush(self._due, (route.due, route.handle))
        self._rhythm.tell(now, self._cpu())
        self._wake_later(now)

    def _wake_later(self, now: float) -> None:
        if self._due and not self._waking:
            self._waking = True
            self._timers.call_later(max(0.0, self._due[0][0] - now), self._wake)

    def _wake(self) -> None:
        self._waking, now = False, self._clock()
        while self._due and self._due[0][0] <= now + _EARLY:
            _, handle = heapq.heappop(self._due)
            if (route := self._routes.get(handle)) is not None:
                route.waits = False
                self.soon(partial(self._flush, route))
        self._rhythm.tell(now, self._cpu())
        self._wake_later(now)

    def _flush(self, route: Route) -> None:
        """The session takes what was received."""
        if taken := route.pending:
            route.pending, route.due = [], self._clock() + self._rhythm.interval
            self._rhythm.took(route.handle)
            route.session.took(route.verifier, taken)
