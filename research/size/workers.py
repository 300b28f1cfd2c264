"""Workers whose forwards take a given time, and an orchestrator's ends of the links to them.

The cores are those of `testkit.load_workers`: what a verifier says follows from the session's
seed, and the drafter is the served one around a method that knows it. The link is the served
one without gRPC: its connecting, its failure detector and its queue of commands are real, and
messages are the records themselves.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from typing import Any, Protocol

from orchestrator.workers.link import WorkerEvent, WorkerLink
from orchestrator.workers.prefix_affinity import chunks_of
from research.size.virtual_loop import context_of
from services.contract import types as t
from services.contract.errors import StartError
from services.drafter.core import DrafterCore
from testkit.load_workers import KnownDrafter, KnownVerifier, bundle

BEAT_S = 0.25
"""As served: a worker tells its load so often."""
METHOD = "known"
_BUNDLE = bundle()


@dataclass(frozen=True, slots=True)
class Times:
    """What takes how long, in milliseconds.

    A step, each session in it, each new token of a prompt, and one way to a worker.
    """

    verify: float = 30.0
    verify_session: float = 0.2
    prefill: float = 0.05
    draft: float = 5.0
    draft_session: float = 0.1
    hop: float = 0.5


class Core(Protocol):
    """As much of a worker's core as turns need."""

    def handle(self, link: int, command: Any, arrived: float) -> None:
        """Absorb one command."""

    def step(self) -> bool:
        """One step; whether there was something to do."""

    def drop_link(self, link: int) -> None:
        """Forget its sessions."""

    def progress(self) -> t.Progress:
        """The load now."""

    def describe(self) -> t.WorkerDescription:
        """What it is."""


class SizedVerifier(KnownVerifier):
    """One with so much K/V, and a prefix cache of `cached` chunks; it counts what it hits."""

    def __init__(self, emit: Callable[..., None], name: str, tokens: int, cached: int) -> None:
        super().__init__(emit, name, 0.0)
        self._about = replace(self._about, kv_capacity_tokens=tokens)
        self._capacity, self._most_cached = tokens, cached
        self._reserved: dict[tuple[int, str], int] = {}
        self._cache: OrderedDict[bytes, None] = OrderedDict()
        self.used = self.refused = self.prompt_tokens = self.cached_tokens = self.fresh = 0

    def handle(self, link: int, command: Any, arrived: float) -> None:
        """A session that does not fit is refused, as served."""
        match command:
            case t.OpenVerify(name):
                tokens = len(command.prompt) + command.sampling.max_tokens
                if self.used + tokens > self._capacity:
                    self.refused += 1
                    why = f"{self.used} of {self._capacity} tokens are in use"
                    failed = t.SessionFailed(name, t.FailureReason.CAPACITY, why, command.epoch)
                    self._emit(link, failed)
                    return
                self.used += tokens
                self._reserved[link, name] = tokens
                self._look_up(command)
            case t.CloseVerify(name):
                self.used -= self._reserved.pop((link, name), 0)
        super().handle(link, command, arrived)

    def drop_link(self, link: int) -> None:
        """Forget its sessions."""
        for key in [key for key in self._reserved if key[0] == link]:
            self.used -= self._reserved.pop(key)
        super().drop_link(link)

    def progress(self) -> t.Progress:
        """With the K/V in use."""
        told = super().progress()
        return replace(told, kv_tokens_used=self.used, kv_tokens_capacity=self._capacity)

    def _look_up(self, opening: t.OpenVerify) -> None:
        chunks = chunks_of(opening.cache_scope, opening.prompt, opening.committed)
        text, hit = len(opening.prompt) + len(opening.committed), 0
        for chunk in chunks:
            if chunk not in self._cache:
                break
            hit += 1
        found = hit * (text // max(1, len(chunks))) if chunks else 0
        self.prompt_tokens += text
        self.cached_tokens += found
        self.fresh += text - found
        for chunk in chunks:
            self._cache[chunk] = None
            self._cache.move_to_end(chunk)
        while len(self._cache) > self._most_cached:
            self._cache.popitem(last=False)


class Worker:
    """One worker, in turns: absorb what came, compute for a while, answer."""

    def __init__(self, address: str, core: Core, times: Times, phase: float) -> None:
        """`phase`: seconds until its first heartbeat."""
        self.address, self.core = address, core
        self.events: list[tuple[int, Any]] = []
        self.messages = self.heartbeats = 0
        self._times = times
        self._links: dict[int, Call] = {}
        self._last_link = self._steps = 0
        self._inbox: list[tuple[int, Any]] = []
        self._computing = False
        self._loop = asyncio.get_running_loop()
        self._context = context_of("worker")
        self._loop.call_later(phase, self._beat, context=context_of("heartbeats"))

    @property
    def links(self) -> int:
        """How many there are."""
        return len(self._links)

    def connect(self, link: "SimulatedLink") -> "Call":
        """A stream to it."""
        self._last_link += 1
        call = self._links[self._last_link] = Call(self, self._last_link, link)
        return call

    def send(self, number: int, commands: Sequence[Any]) -> None:
        """Commands leave for it."""
        hop = 1e-3 * self._times.hop
        self._loop.call_later(hop, self._receive, number, commands, context=self._context)

    def leave(self, number: int) -> None:
        """The stream ends; what it had here goes."""
        hop = 1e-3 * self._times.hop
        self._loop.call_later(hop, self._drop, number, context=self._context)

    def progress(self) -> t.Progress:
        """Its load."""
        return replace(self.core.progress(), steps=self._steps, links=self.links)

    def _drop(self, number: int) -> None:
        self._links.pop(number, None)
        self.core.drop_link(number)

    def _receive(self, number: int, commands: Sequence[Any]) -> None:
        self.messages += 1
        self._inbox += [(number, command) for command in commands]
        if not self._computing:
            self._turn()

    def _turn(self) -> None:
        for number, command in self._inbox:
            if number in self._links:
                self.core.handle(number, command, self._loop.time())
        self._inbox.clear()
        self._computing = True
        after = 1e-3 * self._step_ms()
        self._loop.call_later(after, self._conclude, context=self._context)

    def _step_ms(self) -> float:
        times, core = self._times, self.core
        if isinstance(core, SizedVerifier):
            fresh, core.fresh = core.fresh, 0
            return times.verify + times.verify_session * core.waiting + times.prefill * fresh
        return times.draft + times.draft_session * core.progress().sessions

    def _conclude(self) -> None:
        worked = self.core.step()
        self._steps += worked
        events, batches = list(self.events), dict[int, list[Any]]()
        self.events.clear()
        for number, event in events:
            batches.setdefault(number, []).append(event)
        for number, batch in batches.items():
            if call := self._links.get(number):
                self.messages += 1
                call.answer(batch, 1e-3 * self._times.hop)
        if self._inbox or worked:
            self._turn()
        else:
            self._computing = False

    def _beat(self) -> None:
        """Tell every orchestrator how busy it is."""
        self._loop.call_later(BEAT_S, self._beat)
        told = self.progress()
        for call in list(self._links.values()):
            self.heartbeats += 1
            call.link.take((told,))


class Call:
    """One stream from an orchestrator to a worker."""

    def __init__(self, worker: Worker, number: int, link: "SimulatedLink") -> None:
        self.link = link
        self._worker, self._number = worker, number
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    async def write(self, commands: Sequence[Any]) -> None:
        """They leave together."""
        self._worker.send(self._number, commands)

    def answer(self, events: Sequence[Any], after: float) -> None:
        """They arrive together."""
        self._loop.call_later(after, self.link.take, events, context=self.link.context)

    def cancel(self) -> None:
        """End it."""
        if not self.ended.done():
            self.ended.set_result(None)
            self._worker.leave(self._number)


class Batch(list[Any]):
    """Commands that leave together, as a message."""

    def ByteSize(self) -> int:  # noqa: N802
        """Of no account here."""
        return 0


class _Records:
    """In place of a codec."""

    def encode_request(self, commands: Sequence[Any] = (), **_: Any) -> Batch:
        """The commands themselves."""
        return Batch(commands)


class SimulatedLink(WorkerLink):
    """The served link over calls of this process."""

    def __init__(
        self, workers: dict[str, Worker], context: Context, hop_ms: float, *args: Any, **named: Any
    ) -> None:
        """`context`: that of the orchestrator."""
        super().__init__(*args, **named)
        self.context = context
        self.fetches = 0
        self._workers, self._hop_s = workers, 1e-3 * hop_ms
        self._codec = _Records()

    def take(self, events: Sequence[WorkerEvent]) -> None:
        """A message arrives."""
        if self.up:
            self._detector.hear(self._now, self._awake.missed)
            for event in events:
                self._absorb(event)

    async def fetch_tokenizer(self) -> t.TokenizerBundle:
        """The same for all, after a round trip."""
        self.fetches += 1
        await asyncio.sleep(2 * self._hop_s)
        return _BUNDLE

    async def _connect_once(self) -> None:
        await asyncio.sleep(2 * self._hop_s)
        worker = self._workers.get(self.address)
        if worker is None:
            raise StartError("unavailable: nobody listens there")
        self.description = worker.core.describe()
        await self._serve(worker.connect(self))

    async def _read(self, call: Call) -> None:
        await call.ended


def verifier(number: int, times: Times, tokens: int, cached: int, phase: float) -> Worker:
    """One of them."""
    name = f"verifier-{number}"
    return _made(name, times, phase, lambda emit: SizedVerifier(emit, name, tokens, cached))


def drafter(number: int, times: Times, acceptance: float, chunk: int, phase: float) -> Worker:
    """One of them."""
    name, method = f"drafter-{number}", KnownDrafter(acceptance, chunk, 0.0)
    methods = {METHOD: method}
    return _made(name, times, phase, lambda emit: DrafterCore(methods, emit=emit, worker_id=name))


def _made(name: str, times: Times, phase: float, make: Callable[..., Core]) -> Worker:
    events: list[tuple[int, Any]] = []
    made = Worker(f"{name}:1", make(lambda link, event: events.append((link, event))), times, phase)
    made.events = events
    return made
