"""What the front door offers, without gRPC: start, attach, abort, look up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from weakref import WeakValueDictionary

from paceline.v1 import inference_pb2 as pb

from orchestrator import replies
from orchestrator.core.events import AbortRequested, Begin, Tick, WorkerLost
from orchestrator.core.pacing import Policy, make_policy
from orchestrator.core.rounds import new_session
from orchestrator.core.state import Limits, SessionConfig
from orchestrator.driver import SessionDriver
from orchestrator.experiences import Experiences
from orchestrator.ports import NewSession, SessionKey, SessionStore, StoredSession
from orchestrator.reading import follow
from orchestrator.recorder import Recorder
from orchestrator.requests import (
    ServedModel,
    SessionSpec,
    build_spec,
    dump_spec,
    load_spec,
    parse_defaults,
)
from orchestrator.requests.modes import SHORT_BLOCK
from orchestrator.restored import finished_session, implied_ending
from orchestrator.workers.events import to_core
from orchestrator.workers.link import WorkerEvent
from orchestrator.workers.pool import Target, WorkerPool
from services.common.errors import NoWorker, Overloaded, SessionAborted
from services.common.types import Role, SessionStatus

# A prompt this long (characters) is tokenized in a thread.
LONG_PROMPT = 16_384
DRAIN_POLL = 0.05
# Most levels of a drafted tree where the request names no window: each costs a step of the
# drafter that nothing overlaps with.
DEFAULT_TREE_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Options:
    """How this orchestrator serves."""

    owner: str
    method: str = ""
    pacing: str = "eager"
    fallback: bool = True
    num_speculative_tokens: int = 16
    max_sessions: int = 1024
    limits: Limits = field(default_factory=Limits)


class Inference:
    """Every session of this orchestrator. All methods belong to the event loop."""

    def __init__(
        self,
        pool: WorkerPool,
        target: Target,
        store: SessionStore,
        recorder: Recorder,
        options: Options,
    ) -> None:
        self._pool, self._target = pool, target
        self._store, self._recorder, self._options = store, recorder, options
        self._live: dict[str, SessionDriver] = {}
        self._opening = 0
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._experiences = Experiences()
        # A method stays served when its drafters are away: plain decoding steps in.
        self._methods = dict.fromkeys([options.method] if options.method else [])
        self._capabilities: frozenset[str] = frozenset()
        self.defaults = parse_defaults(target.generation_config_json)

    # --- the use cases ----------------------------------------------------------------

    async def generate(
        self, request: pb.GenerateRequest, tenant: str, parent: str = ""
    ) -> AsyncIterator[replies.Event]:
        """Start a session, or attach to the equal one of the same id; its events."""
        spec = await self._resolve(request)
        key = SessionKey(tenant, spec.session)
        with self._admitted():
            created = await self._store.create(key, self._record(request, spec))
            if created.created:
                driver = self._start(key, spec, created.term, (), parent)
                return self._read(driver, 0)
        return await self.resume(key, 0)

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        """A place among the open sessions, held until the session counts itself."""
        taken = len(self._live) + self._opening
        if taken >= self._options.max_sessions:
            raise Overloaded(f"{taken} sessions are open, which is the limit")
        self._opening += 1
        try:
            yield
        finally:
            self._opening -= 1

    async def resume(
        self, key: SessionKey, offset: int, parent: str = ""
    ) -> AsyncIterator[replies.Event]:
        """Attach to a session at an output offset: a live one, or one from the store."""
        # One at a time: a second restore would fence the first.
        async with self._locks.setdefault(_name(key), asyncio.Lock()):
            driver = self._live.get(_name(key))
            if driver is None:
                stored = await self._takeover(key)
                if stored.status is SessionStatus.FINISHED:
                    rounds = await self._store.rounds(key)
                    return finished_session(stored, rounds, self._target.tokenizer, offset)
                driver = self._restore(key, stored, parent)
        return self._read(driver, offset)

    def _read(self, driver: SessionDriver, offset: int) -> AsyncIterator[replies.Event]:
        # Log lines of this call carry the session's trace from here on.
        self._recorder.bind(driver.name)
        return follow(driver, offset)

    async def _takeover(self, key: SessionKey) -> StoredSession:
        """The stored session, finished or owned by this orchestrator."""
        stored = await self._store.get(key)
        if stored.status in (SessionStatus.ACTIVE, SessionStatus.PAUSED):
            stored = await self._store.acquire(key, self._options.owner)
        if stored.status is SessionStatus.ABORTED:
            raise SessionAborted(f"session {key.session_id!r} was aborted")
        ending = implied_ending(stored, self._target.tokenizer)
        if ending is not None:
            matched = ending.matched_text or ending.matched_token
            length = len(stored.committed)
            await self._store.finish(key, stored.term, length, ending.reason, matched)
            stored = await self._store.get(key)
        return stored

    async def abort(self, key: SessionKey) -> None:
        """End a session at once."""
        await self._store.abort(key)
        driver = self._live.get(_name(key))
        if driver is not None:
            driver.feed(AbortRequested(driver.now()))

    async def stored(self, key: SessionKey) -> StoredSession:
        """What is known of a session. Raises NotFound."""
        return await self._store.get(key)

    def served_model(self) -> ServedModel:
        """What requests are checked against."""
        worker = self._target.worker
        self._methods |= dict.fromkeys(self._pool.methods())
        self._capabilities |= self._pool.capabilities()
        return ServedModel(
            worker.model,
            worker.vocab_size,
            worker.max_context_length,
            tuple(self._methods),
            self.defaults,
            self._default_method(),
            self._capabilities,
            self._slow_methods(),
        )

    def _slow_methods(self) -> frozenset[str]:
        """Methods that, drafting ahead, gather few tokens while a block is verified."""
        if self._options.pacing == "fixed":
            return frozenset()
        limit = self._pool.step_ms(Role.VERIFIER) / SHORT_BLOCK
        times = {method: self._pool.step_ms(Role.DRAFTER, method) for method in self._methods}
        return frozenset(method for method, taken in times.items() if 0 < limit < taken)

    def defaults_json(self) -> str:
        """The model's own sampling defaults."""
        values = asdict(self.defaults)
        del values["warnings"]
        return json.dumps(values)

    @property
    def active_sessions(self) -> int:
        """Sessions at work here."""
        return len(self._live)

    async def drain(self, timeout: float) -> None:
        """Let what is live come to its end; suspend the rest, which stays resumable."""
        deadline = asyncio.get_running_loop().time() + timeout
        while self._live and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(DRAIN_POLL)
        for driver in list(self._live.values()):
            driver.fail(NoWorker("this orchestrator stops; the session can be resumed"))

    # --- making sessions --------------------------------------------------------------

    async def _resolve(self, request: pb.GenerateRequest) -> SessionSpec:
        model, tokenizer = self.served_model(), self._target.tokenizer
        if len(request.prompt) < LONG_PROMPT:
            return build_spec(request, tokenizer, model)
        return await asyncio.to_thread(build_spec, request, tokenizer, model)

    def _record(self, request: pb.GenerateRequest, spec: SessionSpec) -> NewSession:
        return NewSession(
            request=request.SerializeToString(deterministic=True),
            digest=spec.digest,
            prompt=spec.prompt,
            seed=spec.seed,
            owner=self._options.owner,
            resolved=dump_spec(spec),
            target_fingerprint=self._target.worker.model_fingerprint,
            ephemeral=spec.ephemeral,
        )

    def _restore(self, key: SessionKey, stored: StoredSession, parent: str) -> SessionDriver:
        spec = load_spec(stored.resolved, stored.prompt)
        return self._start(key, spec, stored.term, stored.committed, parent)

    def _start(
        self,
        key: SessionKey,
        spec: SessionSpec,
        term: int,
        committed: tuple[int, ...],
        parent: str,
    ) -> SessionDriver:
        text = spec.text_stream(self._target.tokenizer)
        text.append(committed)
        config = self._config(_name(key), spec, term)
        if spec.stop:
            config = replace(config, find_stop=text.scan)
        driver = SessionDriver(
            key,
            spec,
            new_session(config, self._policy(config), committed),
            text,
            workers=self._pool,
            store=self._store,
            recorder=self._recorder,
            on_end=self._forget,
        )
        self._live[driver.name] = driver
        self._recorder.start_generate(driver.name, config, model=spec.model, traceparent=parent)
        driver.feed(Begin(driver.now()))
        return driver

    def _policy(self, config: SessionConfig) -> Policy:
        policy = make_policy(
            self._options.pacing,
            config.window,
            fallback=self._options.fallback,
            exact=config.mode.exact_match,
            trees=config.num_candidates > 1,
        )
        return self._experiences.seeded(config, policy)

    def _config(self, name: str, spec: SessionSpec, term: int) -> SessionConfig:
        options = self._options
        depth = options.num_speculative_tokens
        if spec.num_candidates > 1:
            depth = min(depth, DEFAULT_TREE_DEPTH)
        return SessionConfig(
            session=name,
            prompt=spec.prompt,
            mode=spec.mode,
            sampling=spec.sampling,
            seed=spec.seed,
            term=term,
            method=self._method(spec),
            window=spec.window_cap or depth,
            num_candidates=spec.num_candidates,
            vocab_size=self._target.worker.vocab_size,
            limits=options.limits,
        )

    def _method(self, spec: SessionSpec) -> str:
        if spec.disable_speculation:
            return ""
        return spec.method[0] if spec.method else self._default_method()

    def _default_method(self) -> str:
        served = self._pool.methods()
        return self._options.method or (served[0] if served else "")

    def _forget(self, driver: SessionDriver) -> None:
        if self._live.get(driver.name) is driver:
            del self._live[driver.name]
            self._experiences.remember(driver.state)
            error = driver.output.error
            self._recorder.end_generate(
                driver.name, error=type(error).__name__ if error is not None else ""
            )

    # --- what the workers say ---------------------------------------------------------

    def on_event(self, worker: str, role: Role, event: WorkerEvent) -> None:
        """Hand a worker's event to its session."""
        driver = self._live.get(event.session) if hasattr(event, "session") else None
        if driver is not None:
            absorbed = to_core(worker, role, event, driver.now())
            if absorbed is not None:
                driver.feed(absorbed)

    def on_lost(self, worker: str, role: Role, sessions: Iterable[str], reason: str) -> None:
        """A worker is gone, and these sessions with it."""
        for name in sessions:
            if driver := self._live.get(name):
                driver.feed(WorkerLost(driver.now(), role, worker, reason))

    def on_worker_up(self) -> None:
        """Somebody may be waiting for this worker."""
        for driver in list(self._live.values()):
            driver.feed(Tick(driver.now()))


def _name(key: SessionKey) -> str:
    return f"{key.tenant}/{key.session_id}"
