"""What the service offers, without gRPC: start, attach, abort, look up, hand over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from weakref import WeakValueDictionary

from paceline.v1 import inference_pb2 as pb

from orchestrator import replies
from orchestrator.admission import Admission, Place
from orchestrator.core.events import AbortRequested, Begin, Capped, Tick, WorkerLost
from orchestrator.core.pacing import DEFAULT_POLICY, Policy, make_policy
from orchestrator.core.placement import Wanted
from orchestrator.core.rounds import MOST_TERMS, new_session
from orchestrator.core.state import Limits, SessionConfig
from orchestrator.driver import SessionDriver
from orchestrator.experiences import Experiences
from orchestrator.output import Beyond
from orchestrator.ports import NewSession, SessionKey, SessionStore, StoredSession
from orchestrator.reading import follow
from orchestrator.recorder import Recorder
from orchestrator.requests import (
    ServedModel,
    SessionSpec,
    build_spec,
    dump_spec,
    parse_defaults,
)
from orchestrator.requests.modes import SHORT_BLOCK
from orchestrator.restored import (
    as_new,
    beyond,
    checked_spec,
    finished_session,
    implied_ending,
)
from orchestrator.tenants import DEFAULT_TENANT, Tenant, phrase_scope
from orchestrator.workers.events import to_core
from orchestrator.workers.link import WorkerEvent
from orchestrator.workers.pool import Target, WorkerPool
from services.common.errors import (
    AlreadyExists,
    DataLoss,
    Draining,
    NotFound,
    Overloaded,
    SessionAborted,
)
from services.common.types import Role, SessionStatus, split_methods

# A request this long (bytes) is tokenized in a thread, and so many may wait for theirs.
LONG_REQUEST = 16_384
MOST_LONG_REQUESTS = 64
# Most levels of a drafted tree where the request names no window: each costs a step of the
# drafter that nothing overlaps with.
DEFAULT_TREE_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Options:
    """How this orchestrator serves."""

    owner: str
    method: str = ""
    pacing: str = DEFAULT_POLICY
    fallback: bool = True
    num_speculative_tokens: int = 16
    max_sessions: int = 1024
    max_tokens_in_flight: int | None = None
    limits: Limits = field(default_factory=Limits)
    tenant_key: bytes = b""


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
        most_tokens = options.max_tokens_in_flight
        self._admission = Admission(options.max_sessions, most_tokens, pool.memory)
        self._speculation = 1.0
        self._long_requests = 0
        self._draining = False
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._experiences = Experiences()
        # A method stays served when its drafters are away: plain decoding steps in.
        self._methods = dict.fromkeys(split_methods(options.method))
        self._teams: frozenset[frozenset[str]] = frozenset()
        self._capabilities: frozenset[str] = frozenset()
        self.defaults = parse_defaults(target.generation_config_json)

    # --- the use cases ----------------------------------------------------------------

    async def generate(
        self, request: pb.GenerateRequest, tenant: Tenant, parent: str = ""
    ) -> AsyncIterator[replies.Event]:
        """Start a session, or attach to the equal one of the same id; its events."""
        spec = await self._resolve(request, tenant)
        key = SessionKey(tenant.name, spec.session)
        if (live := self._live.get(_name(key))) is not None:
            return self._attach(live, spec)
        with self._admission.enter(len(spec.prompt), spec.sampling.max_tokens, tenant) as place:
            # A resume that came between would start the session, too.
            async with self._lock(key):
                record = self._record(request, spec)
                created = await self._store.create(key, record)
                if created.created:
                    driver = self._start(key, spec, record, created.term, (), parent, place)
                    return self._read(driver, 0)
        return await self.resume(key, 0, parent, tenant)

    def _lock(self, key: SessionKey) -> asyncio.Lock:
        return self._locks.setdefault(_name(key), asyncio.Lock())

    def _attach(self, live: SessionDriver, spec: SessionSpec) -> AsyncIterator[replies.Event]:
        """The same request again, or another one under its id, of a session at work here."""
        if live.spec.digest != spec.digest:
            raise AlreadyExists(f"session {spec.session!r} exists with other content")
        return self._read(live, 0)

    async def resume(
        self, key: SessionKey, offset: int, parent: str = "", tenant: Tenant = DEFAULT_TENANT
    ) -> AsyncIterator[replies.Event]:
        """Attach to a session at an output offset: a live one, or one from the store.

        Raises Overloaded before anything is changed when there is no room for one more.
        """
        # One at a time: a second restore would fence the first.
        async with self._lock(key):
            driver = self._live.get(_name(key))
            if driver is None:
                stored = await self._store.get(key)
                with self._come_back(stored, tenant) as place:
                    stored = await self._takeover(key, stored)
                    if place is None or stored.status is SessionStatus.FINISHED:
                        rounds = await self._store.rounds(key)
                        return finished_session(stored, rounds, self._target.tokenizer, offset)
                    driver = self._restore(key, stored, parent, place)
        return self._read(driver, offset)

    def _read(self, driver: SessionDriver, offset: int) -> AsyncIterator[replies.Event]:
        # Log lines of this call carry the session's trace from here on.
        self._recorder.bind(driver.name)
        return follow(driver, offset)

    def _come_back(self, stored: StoredSession, tenant: Tenant) -> Place | nullcontext[None]:
        """A place for a session that is not over yet."""
        if stored.status not in (SessionStatus.ACTIVE, SessionStatus.PAUSED):
            return nullcontext()
        weight = _weight(checked_spec(stored, self._target.worker.vocab_size))
        return self._admission.come_back(weight, tenant)

    async def _takeover(self, key: SessionKey, stored: StoredSession) -> StoredSession:
        """The stored session, finished or owned by this orchestrator."""
        if stored.status in (SessionStatus.ACTIVE, SessionStatus.PAUSED):
            # Whoever owns it is left in peace where nobody could go on with it here.
            checked_spec(stored, self._target.worker.vocab_size)
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
        """End a session at once.

        What it holds here is freed whatever the store says; a store that is away raises
        StoreError, and another that lost the session knows of none to end.
        """
        ended = asyncio.ensure_future(self._store.abort(key))
        driver = self._live.get(_name(key))
        if driver is not None:
            driver.feed(AbortRequested(driver.now()))
        try:
            await ended
        except NotFound:
            if driver is None:
                raise
        # Whoever resumed it meanwhile.
        if (late := self._live.get(_name(key))) is not None:
            late.feed(AbortRequested(late.now()))

    async def stored(self, key: SessionKey) -> StoredSession:
        """What is known of a session. Raises NotFound."""
        return await self._store.get(key)

    def served_model(self, tenant: Tenant = DEFAULT_TENANT) -> ServedModel:
        """What requests of a tenant are checked against."""
        worker = self._target.worker
        self._methods |= dict.fromkeys(self._pool.methods())
        self._capabilities |= self._pool.capabilities()
        self._teams |= self._pool.teams()
        return ServedModel(
            worker.model,
            worker.vocab_size,
            worker.max_context_length,
            tuple(self._methods),
            self.defaults,
            self._default_method(),
            self._capabilities,
            self._slow_methods(),
            self._teams,
            tenant.limits.max_tokens,
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

    def sessions_of(self, tenant: str) -> int:
        """Sessions of one tenant at work here."""
        return self._admission.sessions_of(tenant)

    async def drain(self, timeout: float) -> None:
        """Hand every session over, and those that still begin; at most `timeout` until stored."""
        self._draining = True
        handed = [driver.hand_over(_leaving()) for driver in list(self._live.values())]
        if handed:
            await asyncio.wait(handed, timeout=timeout)

    # --- making sessions --------------------------------------------------------------

    async def _resolve(
        self, request: pb.GenerateRequest, tenant: Tenant = DEFAULT_TENANT
    ) -> SessionSpec:
        model, tokenizer = self.served_model(tenant), self._target.tokenizer
        if request.ByteSize() < LONG_REQUEST:
            return build_spec(request, tokenizer, model)
        if self._long_requests >= MOST_LONG_REQUESTS:
            raise Overloaded("too many long prompts wait to be tokenized")
        self._long_requests += 1
        try:
            return await asyncio.to_thread(build_spec, request, tokenizer, model)
        finally:
            self._long_requests -= 1

    def _record(self, request: pb.GenerateRequest, spec: SessionSpec) -> NewSession:
        return NewSession(
            request=request.SerializeToString(deterministic=True),
            digest=spec.digest,
            prompt=spec.prompt,
            seed=spec.seed,
            owner=self._options.owner,
            resolved=dump_spec(spec),
            target_fingerprint=self._fingerprint(),
            ephemeral=spec.ephemeral,
        )

    def _fingerprint(self) -> str:
        """The target of a session that begins now; workers may bring another over time."""
        placed = self._pool.place(Wanted(Role.VERIFIER, 0))
        return (placed or self._target.worker).model_fingerprint

    def _restore(
        self, key: SessionKey, stored: StoredSession, parent: str, place: Place
    ) -> SessionDriver:
        if stored.term > MOST_TERMS:
            raise DataLoss("the session was resumed too often")
        spec = checked_spec(stored, self._target.worker.vocab_size)
        record, ahead = as_new(stored, self._options.owner), beyond(stored, spec)
        return self._start(key, spec, record, stored.term, stored.committed, parent, place, ahead)

    def _start(
        self,
        key: SessionKey,
        spec: SessionSpec,
        record: NewSession,
        term: int,
        committed: tuple[int, ...],
        parent: str,
        place: Place,
        ahead: Beyond = Beyond.NOT_YET,
    ) -> SessionDriver:
        text = spec.text_stream(self._target.tokenizer)
        text.append(committed)
        config = self._config(key, spec, term)
        if spec.stop:
            config = replace(config, find_stop=text.scan)
        driver = SessionDriver(
            key,
            spec,
            new_session(config, self._policy(config), committed),
            text,
            record,
            workers=self._pool,
            store=self._store,
            recorder=self._recorder,
            on_end=lambda ended: self._forget(ended, place),
            beyond=ahead,
        )
        self._live[driver.name] = driver
        self._recorder.start_generate(driver.name, config, model=spec.model, traceparent=parent)
        self._cap(driver)
        driver.feed(Begin(driver.now()))
        self._share_out()
        place.keep()
        if self._draining:
            driver.hand_over(_leaving())
        return driver

    def _share_out(self) -> None:
        """Tell every session when the load allows less speculation, or more again."""
        if (share := self._admission.speculation) != self._speculation:
            self._speculation = share
            for driver in list(self._live.values()):
                self._cap(driver)

    def _cap(self, driver: SessionDriver) -> None:
        window = int(self._speculation * driver.state.config.window)
        if driver.state.cap is not None or self._speculation < 1:
            driver.feed(Capped(driver.now(), window))

    def _policy(self, config: SessionConfig) -> Policy:
        policy = make_policy(
            self._options.pacing,
            config.window,
            fallback=self._options.fallback,
            exact=config.mode.exact_match,
            trees=config.num_candidates > 1,
            chained=config.limits.max_in_flight > 1,
            seed=config.seed,
        )
        return self._experiences.seeded(config, policy)

    def _config(self, key: SessionKey, spec: SessionSpec, term: int) -> SessionConfig:
        options = self._options
        depth = options.num_speculative_tokens
        if spec.num_candidates > 1:
            depth = min(depth, DEFAULT_TREE_DEPTH)
        return SessionConfig(
            session=_name(key),
            prompt=spec.prompt,
            mode=spec.mode,
            sampling=spec.sampling,
            seed=spec.seed,
            term=term,
            method=self._method(spec),
            window=spec.window_cap or depth,
            num_candidates=spec.num_candidates,
            vocab_size=self._target.worker.vocab_size,
            phrase_scope=self._phrase_scope(key.tenant, spec),
            synchronous=options.pacing == "fixed",
            limits=options.limits,
        )

    def _phrase_scope(self, tenant: str, spec: SessionSpec) -> str:
        """Nothing of an ephemeral session outlives it, in a drafter either."""
        if spec.ephemeral:
            return ""
        tokenizer = self._target.worker.tokenizer_fingerprint
        return phrase_scope(tenant, tokenizer, self._options.tenant_key)

    def _method(self, spec: SessionSpec) -> str:
        if spec.disable_speculation:
            return ""
        return ",".join(spec.method) or self._default_method()

    def _default_method(self) -> str:
        served = self._pool.methods()
        return self._options.method or (served[0] if served else "")

    def _forget(self, driver: SessionDriver, place: Place) -> None:
        if self._live.get(driver.name) is driver:
            del self._live[driver.name]
            place.leave()
            self._share_out()
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


def _weight(spec: SessionSpec) -> int:
    """Tokens that a verifier reserves for the session, but for its window."""
    return len(spec.prompt) + spec.sampling.max_tokens


def _leaving() -> Draining:
    return Draining("this orchestrator stops; the session can be resumed at another one")


def _name(key: SessionKey) -> str:
    return f"{key.tenant}/{key.session_id}"
