"""The links to all workers: discovery, pairing, placement, and routing of events."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Protocol

from orchestrator.text.tokenizer import Tokenizer
from orchestrator.workers.link import (
    CHECK_EVERY,
    Command,
    LinkLimits,
    WorkerLink,
)
from orchestrator.workers.placement import Candidate, Wanted, choose, fits, pairs
from orchestrator.workers.prefix_affinity import PrefixAffinity, chunks_of
from orchestrator.workers.subset import order_of
from orchestrator.workers.visits import Visits
from services.contract.errors import StartError
from services.contract.states import NO_STATES, OnStates, StateShape, gives, needed
from services.contract.types import (
    Draining,
    Progress,
    Role,
    WorkerDescription,
    local_methods,
    split_methods,
)
from services.contract.worker_messages import EndSession
from services.runtime.awake import AwakeClock
from services.runtime.serving import Dialing

log = logging.getLogger(__name__)

SETTLE_EVERY = 0.02
STANDSTILL = 1.0
"""Longer stalls of this process are logged; seconds."""


@dataclass(frozen=True, slots=True)
class Target:
    """The one model this cluster serves, as its first verifier described it."""

    worker: WorkerDescription
    tokenizer: Tokenizer


class Sessions(Protocol):
    """The sessions' side of the pool, which gets the workers' news."""

    def on_event(self, worker: str, role: Role, event: Any) -> None:
        """An event of one session, or of many."""

    def on_lost(
        self, worker: str, role: Role, sessions: Iterable[int], reason: str, *, faulty: bool
    ) -> None:
        """These sessions are gone on the worker; `faulty`: which said what none must."""

    def on_standstill(self, seconds: float) -> None:
        """This process stalled for so long, until now."""

    def on_worker_up(self) -> None:
        """A worker can take sessions now."""


class WorkerPool:
    """Every worker this orchestrator knows. All methods belong to the event loop."""

    def __init__(
        self,
        orchestrator_id: str,
        *,
        model: str = "",
        limits: LinkLimits | None = None,
        dialing: Dialing | None = None,
        on_states: OnStates | None = None,
        clock: Callable[[], float] = time.monotonic,
        make_link: Callable[..., WorkerLink] = WorkerLink,
    ) -> None:
        """`model` is the only model id to accept; empty = that of the first verifier.

        `on_states` is told of the target's states that are sent to drafters, and dropped.
        `make_link` is called as `WorkerLink` is.
        """
        self._id = orchestrator_id
        self._model = model
        self._limits = limits
        self._dialing = dialing
        self._on_states = on_states
        self._unpaired: set[str] = set()
        self._links: dict[tuple[Role, str], WorkerLink] = {}
        self._by_worker: dict[str, WorkerLink] = {}
        self._visits = Visits(orchestrator_id)
        self._prefix_affinity = PrefixAffinity()
        self._clock, self._make_link = clock, make_link
        self._awake = AwakeClock(CHECK_EVERY, clock())
        self._sessions: Sessions | None = None
        self._target_known = asyncio.Event()
        self._learning = asyncio.Lock()
        self._checker: asyncio.TimerHandle | None = None
        self._just_woke = False
        self._closing: set[asyncio.Task[None]] = set()
        self.target: Target | None = None

    def attach(self, sessions: Sessions | None) -> None:
        """Send the workers' news to `sessions` from now on; None: to nobody."""
        self._sessions = sessions

    def start(self) -> None:
        """Begin to watch for workers that stall."""
        self._awake.beat(self._clock())
        self._check_later()

    async def close(self) -> None:
        """End every link."""
        if self._checker is not None:
            self._checker.cancel()
        await asyncio.gather(*(link.close() for link in self._links.values()))

    def set_addresses(
        self, role: Role, addresses: Iterable[str], beyond: Mapping[str, str] | None = None
    ) -> None:
        """Connect to new addresses. A worker that left the list keeps its link while it is up.

        `beyond`: ids and addresses of workers that are there for the sessions that need just them.
        """
        wanted = set(addresses)
        self._visits.know(role, beyond or {})
        for address in wanted:
            if (role, address) not in self._links:
                self._add(role, address)
        for (known_role, address), link in list(self._links.items()):
            if known_role is role:
                link.visit = self._visits.away(role, address)
                if address not in wanted and not link.up and not link.visit:
                    self._remove(link)

    def _remove(self, link: WorkerLink) -> None:
        del self._links[link.role, link.address]
        closing = asyncio.create_task(link.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _add(self, role: Role, address: str) -> None:
        link = self._make_link(
            address,
            role,
            self._id,
            on_up=self._on_up,
            on_event=self._on_event,
            on_down=self._on_down,
            limits=self._limits,
            dialing=self._dialing,
            awake=self._awake,
            on_states=self._on_states,
            clock=self._clock,
        )
        self._links[role, address] = link
        link.visit = self._visits.away(role, address)
        link.start()

    async def ready(self, timeout: float) -> Target:
        """Wait for a verifier and its tokenizer. Raises StartError with the obstacle."""
        try:
            await asyncio.wait_for(self._target_known.wait(), timeout)
        except TimeoutError:
            raise StartError(self._why_not_ready(timeout)) from None
        assert self.target is not None
        return self.target

    def _why_not_ready(self, timeout: float) -> str:
        problems = [
            f"{link.address}: {link.problem or 'no answer'}"
            for link in self.links(Role.VERIFIER)
            if not link.up
        ]
        known = "; ".join(problems) or "none is known (setting verifiers, or the registry)"
        return f"no verifier within {timeout:g} s: {known}"

    # --- placing and sending ----------------------------------------------------------

    def place(self, wanted: Wanted) -> WorkerDescription | None:
        """The worker that suits best, or None. Drafters must share the target's tokenizer.

        Its prefix affinity assumes that it computes the wanted text.
        """
        if self.target is not None:
            fingerprint = self.target.worker.tokenizer_fingerprint
            wanted = replace(wanted, tokenizer_fingerprint=fingerprint)
        if (home := self._home(wanted)) is None:
            return None
        candidates = self._candidates(wanted)
        # Before the text is hashed: sessions that wait for room ask again and again.
        if not any(fits(candidate, wanted) for candidate in candidates):
            candidates = self._candidates(wanted, visits=True)
            if not any(fits(candidate, wanted) for candidate in candidates):
                self._look_further(wanted.role)
                return None
        chunks = chunks_of(wanted.cache_scope, *wanted.text)
        chosen = choose(candidates, wanted, self._prefix_affinity.find(chunks) or home)
        if chosen is None:
            return None
        self._prefix_affinity.note(chunks, chosen)
        return self._by_worker[chosen].description

    def _candidates(self, wanted: Wanted, *, visits: bool = False) -> list[Candidate]:
        """The workers of a role; those beyond the subset only if asked for, or if wanted."""
        named = {wanted.home, wanted.beside, *wanted.company}
        return [
            Candidate(
                link.description,
                link.progress,
                len(link.assigned),
                link.draining,
                link.address,
                link.stuck_s,
                link.placed.fresh,
                link.placed.fresh_tokens,
                link.order,
            )
            for worker, link in self._by_worker.items()
            if link.up
            and link.description is not None
            and (worker in named or (link.role is wanted.role and (visits or not link.visit)))
        ]

    def _home(self, wanted: Wanted) -> str | None:
        """The verifier that a session comes from; None: the link to it is on its way."""
        if not wanted.home or wanted.home in self._by_worker:
            return wanted.home
        address = self._visits.address_of(wanted.role, wanted.home)
        if not address or not self._visits.waits(wanted.role, address, self._clock()):
            return ""
        if (wanted.role, address) not in self._links:
            self._add(wanted.role, address)
        return None

    def _look_further(self, role: Role) -> None:
        """Connect to a few workers beyond the subset, for which nothing here has room."""
        linked = [address for known, address in self._links if known is role]
        for address in self._visits.more(role, linked, self._clock()):
            self._add(role, address)

    def opening_s(self, worker: str, tokens: int) -> float:
        """Expected seconds to open a session with so many tokens of text on the worker."""
        link = self._by_worker.get(worker)
        return link.opening_s(tokens) if link is not None else 0.0

    def send(self, worker: str, handle: int, command: Command) -> None:
        """Send a command for a session; the session then counts as one of the worker's.

        A worker that is gone swallows it: its loss is reported apart.
        """
        link = self._by_worker.get(worker)
        if link is not None:
            link.assigned.add(handle)
            link.send(command)

    def forward(self, worker: str, command: Command) -> None:
        """Send what concerns many sessions of a worker; swallowed by one that is gone."""
        if (link := self._by_worker.get(worker)) is not None:
            link.send(command)

    def release(self, worker: str, handle: int) -> None:
        """Close the session on the worker."""
        link = self._by_worker.get(worker)
        if link is None or handle not in link.assigned:
            return
        link.assigned.discard(handle)
        link.send(EndSession(handle))

    def cut(self, worker: str, reason: str) -> None:
        """Give a worker up that did what it must not, and connect to it anew."""
        if (link := self._by_worker.get(worker)) is not None:
            link.cut(reason)

    def links(self, role: Role | None = None) -> list[WorkerLink]:
        """All links, of one role if given."""
        return [link for link in self._links.values() if role in (None, link.role)]

    def methods(self) -> tuple[str, ...]:
        """Drafting methods that a connected worker offers, most preferred first."""
        known = [m for team in self._teams() for m in team]
        return tuple(dict.fromkeys(known))

    def teams(self) -> frozenset[frozenset[str]]:
        """The methods of each drafter, of each verifier that drafts itself, and of two such."""
        return frozenset(map(frozenset, self._teams()))

    def _teams(self) -> list[tuple[str, ...]]:
        verifiers = [local_methods(_capabilities(link)) for link in self._up(Role.VERIFIER)]
        alone = [own for own in dict.fromkeys(verifiers) if own]
        drafters = [_methods(link) for link in self._up(Role.DRAFTER)]
        return [*alone, *drafters, *[own + others for own in alone for others in drafters]]

    def capabilities(self, role: Role = Role.DRAFTER) -> frozenset[str]:
        """All capabilities of the connected drafters and their methods, or of verifiers.

        What the methods of a verifier that drafts itself are able to is among the former.
        """
        own = {c for link in self._up(role) for c in _capabilities(link)}
        if role is Role.DRAFTER:
            own.update(c for link in self._up(Role.VERIFIER) for c in _of_local_methods(link))
        return frozenset(own)

    def takes(self, worker: str) -> bool:
        """Whether the worker is connected, and does not drain."""
        link = self._by_worker.get(worker)
        return link is not None and link.up and not link.draining

    def states_for(self, methods: Collection[str]) -> StateShape | None:
        """The states of the target that a drafter of these methods needs, and a verifier tells.

        None: drafters of these methods need what no verifier tells.
        """
        wanting = [link for link in self._up(Role.DRAFTER) if set(methods) <= set(_methods(link))]
        described = [link.description for link in wanting if link.description is not None]
        shapes = [needed(worker, tuple(methods)) for worker in described]
        for worker, shape in zip(described, shapes, strict=True):
            if shape == NO_STATES or self._gives(shape):
                return shape
            if worker.worker_id not in self._unpaired:
                self._unpaired.add(worker.worker_id)
                told = "drafter %s needs states of layers %s, %d numbers: no verifier tells them"
                log.warning(told, worker.worker_id, list(shape.layers), shape.width)
        return None if shapes else NO_STATES

    def _gives(self, shape: StateShape) -> bool:
        verifiers = [link.description for link in self._up(Role.VERIFIER)]
        return any(gives(worker, shape) for worker in verifiers if worker is not None)

    def step_ms(self, role: Role, method: str = "") -> float:
        """Step time of the connected workers of a role; 0 = no step yet.

        With a `method`, only drafters that offer it count.
        """
        links = [link for link in self._up(role) if not method or method in _methods(link)]
        taken = [link.progress.step_ms for link in links if link.progress.step_ms > 0]
        return fmean(taken) if taken else 0.0

    def connected(self, role: Role) -> int:
        """Workers of a role that take sessions now. Safe in any thread."""
        links = self._by_worker.copy().values()
        return sum(link.role is role and link.up and not link.draining for link in links)

    def reports(self, role: Role) -> list[Progress]:
        """The last progress of each connected worker of a role. Safe in any thread."""
        links = self._by_worker.copy().values()
        return [link.progress for link in links if link.up and link.role is role]

    def memory(self) -> int:
        """Tokens that the connected verifiers can hold; 0 = not known."""
        return sum(link.progress.kv_tokens_capacity for link in self._up(Role.VERIFIER))

    def room(self) -> float:
        """Tokens that may be in flight here: what others leave of what verifiers hold and queue.

        As many tokens as a verifier holds may wait for it; of these its orchestrators have equal
        shares. Without a limit while a verifier tells no capacity.
        """
        shares = [_room(link) for link in self._up(Role.VERIFIER)]
        return sum(shares) or math.inf

    def largest_memory(self) -> int:
        """Tokens that one connected verifier can hold at most; 0 = not known."""
        held = [link.progress.kv_tokens_capacity for link in self._up(Role.VERIFIER)]
        return max(held, default=0)

    def _up(self, role: Role) -> list[WorkerLink]:
        return [link for link in self._by_worker.values() if link.up and link.role is role]

    # --- what the links say -----------------------------------------------------------

    async def _on_up(self, link: WorkerLink) -> None:
        assert link.description is not None
        other = self._by_worker.get(link.worker_id)
        if other is not None and other is not link and other.up:
            raise StartError(f"worker id {link.worker_id!r} is taken by {other.address}")
        if link.role is Role.VERIFIER:
            await self._admit_verifier(link, link.description)
        else:
            self._admit_drafter(link.description)
        link.assigned.clear()
        link.order = int.from_bytes(order_of(f"{self._id}/{link.worker_id}"))
        self._by_worker[link.worker_id] = link
        log.info("%s %s at %s is connected", link.role.value, link.worker_id, link.address)
        if self._sessions is not None:
            self._sessions.on_worker_up()

    async def _admit_verifier(self, link: WorkerLink, worker: WorkerDescription) -> None:
        if self._model and worker.model != self._model:
            raise StartError(f"it serves {worker.model!r}, this cluster {self._model!r}")
        # One at a time: of many that connect at once, the first tells what all the others know.
        async with self._learning:
            if self.target is None:
                tokenizer = Tokenizer(await link.fetch_tokenizer())
                for fault in await asyncio.to_thread(tokenizer.broken_templates):
                    log.warning("%s: %s", worker.model, fault)
                self.target = Target(worker, tokenizer)
                self._target_known.set()
                self._recheck_drafters()
        known = self.target.worker
        if worker.tokenizer_fingerprint != known.tokenizer_fingerprint:
            raise StartError(_mismatch("verifier", worker, known))
        old, new = known.model_fingerprint, worker.model_fingerprint
        for other in self._up(Role.VERIFIER):
            _require_format(worker, other.description)
        if not self._up(Role.VERIFIER) and new != old:
            log.warning("the target changed from %s to %s", old, new)

    def _admit_drafter(self, worker: WorkerDescription) -> None:
        if self.target is None:
            return
        known = self.target.worker
        if not pairs(worker.tokenizer_fingerprint, known.tokenizer_fingerprint):
            raise StartError(_mismatch("drafter", worker, known))

    def _recheck_drafters(self) -> None:
        """Drafters that connected before the target was known."""
        for link in self._up(Role.DRAFTER):
            try:
                assert link.description is not None
                self._admit_drafter(link.description)
            except StartError as error:
                link.cut(str(error))

    def _on_event(self, link: WorkerLink, event: Any) -> None:
        if isinstance(event, Draining):
            self._lose(link, "it drains")
        elif self._sessions is not None:
            self._sessions.on_event(link.worker_id, link.role, event)

    def _on_down(self, link: WorkerLink, reason: str) -> None:
        if self._by_worker.get(link.worker_id) is link:
            del self._by_worker[link.worker_id]
            self._lose(link, reason, faulty=link.faulty)

    def _lose(self, link: WorkerLink, reason: str, *, faulty: bool = False) -> None:
        """Tell the sessions; if the link still stands, close them there one by one."""
        lost = list(link.assigned)
        if self._sessions is not None and lost:
            self._sessions.on_lost(link.worker_id, link.role, lost, reason, faulty=faulty)

    async def settle(self, timeout: float) -> None:
        """Wait until every worker known by now is connected or has a problem."""
        deadline = self._clock() + timeout
        while self._clock() < deadline:
            if all(link.up or link.problem for link in self._links.values()):
                return
            await asyncio.sleep(SETTLE_EVERY)

    def _check_later(self) -> None:
        # A timer, no task: after a stall the callbacks run in the order they were due.
        loop = asyncio.get_running_loop()
        self._checker = loop.call_later(CHECK_EVERY, self._check)

    def _check(self) -> None:
        """Cut off stalled workers. After a stall of our own, pending messages are read first."""
        self._check_later()
        late = self._awake.beat(self._clock())
        if late > STANDSTILL:
            log.warning("this process stood still for %.1f s", late)
            if self._sessions is not None:
                self._sessions.on_standstill(late)
        self._just_woke = bool(late) and not self._just_woke
        if not self._just_woke:
            for link in list(self._links.values()):
                link.check()
                if link.visit and not self._visits.keep(link, self._clock()):
                    self._remove(link)


def _room(link: WorkerLink) -> float:
    told = link.progress
    sharers = max(1, told.links)
    others = max(0, told.kv_tokens_used - link.placed.told) if sharers > 1 else 0
    return max(0, told.kv_tokens_capacity - others) + told.kv_tokens_capacity / sharers


def _methods(link: WorkerLink) -> tuple[str, ...]:
    return link.description.methods if link.description else ()


def _of_local_methods(link: WorkerLink) -> list[str]:
    """What the methods by which a verifier drafts itself are able to."""
    every = _capabilities(link)
    local = set(local_methods(every))
    told = [(own, set(split_methods(own.rpartition(":")[0]))) for own in every]
    return [own for own, methods in told if methods and methods <= local]


def _capabilities(link: WorkerLink) -> tuple[str, ...]:
    return link.description.capabilities if link.description else ()


def _require_format(worker: WorkerDescription, known: WorkerDescription | None) -> None:
    """Texts of one pool do not depend on which of its verifiers has them; "" = not told."""
    if known is not None and worker.dtype and known.dtype and worker.dtype != known.dtype:
        raise StartError(
            f"verifier {worker.worker_id} computes in {worker.dtype}, and {known.worker_id}, which "
            f"is here already, in {known.dtype}: a pool has one number format"
        )


def _mismatch(role: str, worker: WorkerDescription, known: WorkerDescription) -> str:
    way_out = "; the method text drafts with another one" if role == "drafter" else ""
    return (
        f"the tokenizer of {role} {worker.worker_id} ({worker.tokenizer_fingerprint}) is not "
        f"that of the target {known.model} ({known.tokenizer_fingerprint}){way_out}"
    )
