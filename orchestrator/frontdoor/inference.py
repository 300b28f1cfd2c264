"""What the service offers, without gRPC: start, attach, abort, look up, hand over."""

from __future__ import annotations

import asyncio
import math
import time
from asyncio import gather, shield
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing, nullcontext, suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from paceline.together import together

from orchestrator.frontdoor.admission import Admission, Reservation, Work
from orchestrator.frontdoor.intake import vetted
from orchestrator.frontdoor.known_sessions import KnownSessions
from orchestrator.frontdoor.live_sessions import LiveSessions, Past, leaving
from orchestrator.frontdoor.long_requests import RequestThreads
from orchestrator.frontdoor.records import Records
from orchestrator.frontdoor.requests import (
    IncomingRequest,
    IncomingScore,
    ScoreSpec,
    build_score,
    build_spec,
    check_counts,
    check_score_counts,
)
from orchestrator.frontdoor.response_formats import ResponseFormats
from orchestrator.frontdoor.scoring import AT_ONCE, Scored, Scoring
from orchestrator.frontdoor.stored_texts import Slices, StoredTexts
from orchestrator.frontdoor.stream_reader import follow, follow_alone
from orchestrator.recorder import Recorder, Resuming
from orchestrator.session.answer import Event, SessionRound
from orchestrator.session.initial_state import InitialStates
from orchestrator.session.logprobs import PackedRow, memory_of, prompt_memory, prompt_memory_of
from orchestrator.session.offered_model import OfferedModel
from orchestrator.session.options import Options
from orchestrator.session.output import Prefix
from orchestrator.session.ports import (
    Call,
    Created,
    NewSession,
    Outline,
    SessionKey,
    SessionStore,
    StoredSession,
)
from orchestrator.session.ranges import DEFAULT_MAX_TOKENS
from orchestrator.session.record_size import most_stored, stored_size
from orchestrator.session.round_records import session_rounds
from orchestrator.session.spec import SessionSpec
from orchestrator.session.spec_record import dump_spec, load_spec
from orchestrator.session.stored_text import (
    as_new,
    beyond,
    checked_spec,
    finished_session,
    given_up,
    implied_ending,
    require_possible,
    require_prefix,
)
from orchestrator.session.tenants import DEFAULT_TENANT, Tenant
from orchestrator.steering.driver import Driver
from orchestrator.steering.hub import Hub
from orchestrator.steering.openings import MOST_TERMS
from orchestrator.store.null_store import NullStore
from orchestrator.text import TextStream
from orchestrator.workers.pool import Target, WorkerPool
from services.contract.errors import (
    AlreadyExists,
    DataLoss,
    Fenced,
    Impossible,
    InvalidRequest,
    NotFound,
    PacelineError,
    SessionAborted,
)
from services.contract.types import Role, SessionStatus

T = TypeVar("T")


class _Created(NamedTuple):
    """A session that was stored, and is to begin."""

    spec: SessionSpec
    record: NewSession
    term: int
    place: Reservation


# Seconds for the store to name a session's owner; after that the owner here keeps it.
OWNER_KNOWN_WITHIN = 2.0


class Inference:
    """Every session of this orchestrator. All methods belong to the event loop."""

    def __init__(
        self,
        pool: WorkerPool,
        target: Target,
        store: SessionStore,
        recorder: Recorder,
        options: Options,
        forms: ResponseFormats | None = None,
        work: Work | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`forms`: checks which response formats can be served; see `stop_compiling`.

        `work`: counts what each tenant's requests cost. `clock`: of all events, in seconds.
        """
        self._pool, self._target = pool, target
        self._store, self._recorder, self._options = store, recorder, options
        most_tokens = options.max_tokens_in_flight
        self._admission = Admission(
            options.max_sessions,
            most_tokens,
            pool.memory,
            clock,
            options.logprobs_memory,
            pool.room if most_tokens is None else lambda: math.inf,
        )
        self._records = Records(options.records_memory, options.ended_s, options.idle_s, clock)
        self._stored_texts = StoredTexts(options.max_sessions)
        self._known = KnownSessions(store, work)
        self._restoring = Slices()
        self.request_threads = RequestThreads()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._forms, self._work = forms or ResponseFormats(), work
        self._forms.special = target.tokenizer.special_names
        self.offer = OfferedModel(pool, target, options)
        self._initial_states = InitialStates(self.offer, options)
        self._hub = Hub(pool, clock=clock)
        self.live = LiveSessions(
            *(pool, target, recorder, options, self._admission, self._initial_states, clock),
            hub=self._hub,
            on_costly=self._forms.blame,
        )
        self._scoring = Scoring(pool, options.limits, self._hub)

    # --- the use cases ----------------------------------------------------------------

    async def generate(
        self,
        request: IncomingRequest,
        tenant: Tenant,
        parent: str = "",
        call: Call | None = None,
    ) -> AsyncGenerator[Event]:
        """Start a session, or attach to the equal one of the same id; its events."""
        spec = await self._resolve(request, tenant)
        del request  # It may be megabytes long.
        if spec.n > 1:
            return await self._generate_together(spec, tenant, parent, call)
        key = SessionKey(tenant.name, spec.session)
        if (live := self.live.get(key.name)) is not None:
            _require_equal(live, spec)
            if await self._is_ours(key, live, call):
                return self._read(live, Prefix())
            return await self.resume(key, Prefix(), parent, tenant, call)
        self._require_no_other(self.live.completions(key), spec)
        self._require_memory(spec)
        with ExitStack() as places:
            [place] = self._enter(places, 1, spec, tenant, stored=True)
            await self._forms.require(spec.sampling.response_format, tenant.name)
            # Otherwise a concurrent resume would start the session, too.
            async with self._lock(key):
                record = self._record(spec)
                created = await self._create(key, record, place, call)
                if created.created:
                    driver = self.live.begin(
                        key, spec, record, created.term, parent, place, self._store
                    )
                    return self._read(driver, Prefix())
        return await self.resume(key, Prefix(), parent, tenant, call)

    async def _generate_together(
        self,
        spec: SessionSpec,
        tenant: Tenant,
        parent: str,
        call: Call | None,
    ) -> AsyncGenerator[Event]:
        """The same for several completions of one prompt, each a session of its own."""
        keys = [SessionKey(tenant.name, one.session) for one in spec.completions(0)]
        alone = self.live.get(SessionKey(tenant.name, spec.session).name)
        self._require_no_other([] if alone is None else [alone], spec)
        begun = await self._begin_together(spec, keys, tenant, parent, call)
        return together(
            [
                self._read(live, Prefix())
                if key in begun and (live := self.live.get(key.name)) is not None
                else self._come_back_to(key, tenant, parent, call)
                for key in keys
            ]
        )

    async def _begin_together(
        self,
        spec: SessionSpec,
        keys: list[SessionKey],
        tenant: Tenant,
        parent: str,
        call: Call | None,
    ) -> Collection[SessionKey]:
        """Begin those of these sessions that do not exist, all or none; which those are."""
        absent = {key for key in keys if self.live.get(key.name) is None}
        if absent:
            self._require_memory(spec)
        with ExitStack() as places:
            free = self._enter(places, len(absent), spec, tenant, stored=True)
            if absent:
                await self._forms.require(spec.sampling.response_format, tenant.name)
            async with AsyncExitStack() as locks:
                for key in keys:
                    await locks.enter_async_context(self._lock(key))
                own = dict(zip(absent, free, strict=True))
                created = await self._create_together(spec, keys, own, call)
                for key, (one, record, term, place) in created.items():
                    self.live.begin(key, one, record, term, parent, place, self._store)
        return created

    async def _create_together(
        self,
        spec: SessionSpec,
        keys: list[SessionKey],
        places: dict[SessionKey, Reservation],
        call: Call | None,
    ) -> dict[SessionKey, _Created]:
        """Store those that have a place and do not exist, or none where an id has other content.

        One that was at work when places were taken, and has gone, is read from the store.
        """
        created: dict[SessionKey, _Created] = {}

        async def create(key: SessionKey, one: SessionSpec) -> None:
            if (live := self.live.get(key.name)) is not None:
                return _require_equal(live, one)
            if (place := places.get(key)) is None:
                return None
            record = self._record(one)
            found = await self._create(key, record, place, call)
            if found.created:
                created[key] = _Created(one, record, found.term, place)
            return None

        await create(keys[0], spec.completions(spec.seed)[0])
        seed = spec.seed if created else await self._seed_of(keys[0])
        others = zip(keys[1:], spec.completions(seed)[1:], strict=True)
        tries = await gather(*(create(*other) for other in others), return_exceptions=True)
        failures = [error for error in tries if error is not None]
        taken = any(isinstance(error, AlreadyExists) for error in failures)
        for key, one in created.items() if failures else ():
            _stays(key, one.record, one.place, ended=taken)
        if taken:
            await gather(*map(self._store.abort, created), return_exceptions=True)
        if failures:
            raise failures[0]
        return created

    async def _create(
        self, key: SessionKey, record: NewSession, place: Reservation, call: Call | None
    ) -> Created:
        """Store a session that does not exist; what may be stored counts, whoever waits for it."""
        try:
            return await self._store.create(key, record, call)
        except AlreadyExists:
            raise
        except BaseException:
            _stays(key, record, place, ended=False)
            raise

    async def _seed_of(self, key: SessionKey) -> int:
        """The seed that a session was created with."""
        live = self.live.get(key.name)
        return live.spec.seed if live is not None else (await self._known.look(key)).seed

    async def _come_back_to(
        self, key: SessionKey, tenant: Tenant, parent: str, call: Call | None
    ) -> AsyncGenerator[Event]:
        """`resume` from the start, once it is read: what fails is this session's failure alone."""
        events = await self.resume(key, Prefix(), parent, tenant, call)
        async with aclosing(events):
            async for event in events:
                yield event

    async def generate_once(
        self, request: IncomingRequest, key: SessionKey, tenant: Tenant, parent: str = ""
    ) -> AsyncGenerator[Event]:
        """Start a session for one reader: it is stored nowhere, and ends when that reader leaves.

        No other way may lead to a session of this key. Raises AlreadyExists while it is at
        work here.
        """
        spec = replace(await self._resolve(request, tenant), session=key.session_id)
        parts = {SessionKey(tenant.name, one.session): one for one in spec.completions(spec.seed)}
        self._require_free(key, *parts)
        self._require_memory(spec)
        with ExitStack() as places:
            free = self._enter(places, spec.n, spec, tenant, stored=False)
            await self._forms.require(spec.sampling.response_format, tenant.name)
            self._require_free(key, *parts)
            drivers = [
                self.live.begin(own, one, self._record(one), 1, parent, place, NullStore())
                for (own, one), place in zip(parts.items(), free, strict=True)
            ]
        self._recorder.bind(drivers[0].name)
        streams = [follow_alone(driver) for driver in drivers]
        return streams[0] if spec.n == 1 else together(streams)

    def _require_no_other(self, drivers: list[Driver], spec: SessionSpec) -> None:
        if drivers:
            raise AlreadyExists(f"request {spec.session!r} exists with another n")

    def _require_free(self, *keys: SessionKey) -> None:
        for key in keys:
            if self.live.get(key.name) is not None or self.live.completions(key):
                raise AlreadyExists(f"session {key.session_id!r} is at work already")

    def _enter(
        self,
        places: ExitStack,
        count: int,
        spec: SessionSpec,
        tenant: Tenant,
        *,
        stored: bool,
    ) -> list[Reservation]:
        """Room for so many such sessions, given back with `places` by those that do not begin."""
        if not count:
            return []
        # Who asked for one that is not stored may want every token's logprobs at the end.
        kept = self._options.logprobs_kept if stored else spec.sampling.max_tokens
        memory = _logprobs_memory(spec, kept)
        size = len(spec.prompt), _expected(spec)
        shown = "logprobs" if spec.sampling.logprobs is not None else "prompt_logprobs"
        fields = "sampling.max_tokens", f"sampling.{shown}"
        made = self._admission.enter_together(count, *size, tenant, memory, fields)
        entered = [places.enter_context(place) for place in made]
        if stored:
            # Of several completions each has its number in its name, and another seed.
            most = _most_stored(len(dump_spec(spec)) + 64, spec)
            records = self._records.enter(tenant, count, most)
            for place, record in zip(entered, records, strict=True):
                place.record = record
        return entered

    async def score(
        self, request: IncomingScore, tenant: Tenant, parent: str = ""
    ) -> tuple[ScoreSpec, list[list[PackedRow]]]:
        """How likely continuations of a context are: for each, rows with the likeliest token."""
        if self.live.draining:
            raise leaving()
        if not self.offer.scores:
            raise Impossible("no verifier here tells how likely a text is")
        spec = await self._resolve_score(request, tenant)
        del request  # It may be megabytes long.
        shared = self._initial_states.score_scopes(tenant.name, spec.ephemeral)
        texts = [Scored(spec.context, one, spec.top, *shared) for one in spec.continuations]
        longest = sorted((one.size for one in texts), reverse=True)
        largest = self._pool.largest_memory()
        if largest and longest[0] > largest:
            allowed = f"at most {largest} with its context: a verifier's K/V holds no more"
            raise InvalidRequest("continuations", f"{longest[0]} tokens", allowed)
        at_once = _at_once(longest, largest // 2, self._admission.most_tokens(tenant))
        memory = prompt_memory(sum(map(len, spec.continuations)), max(1, spec.top))
        weight, fields = sum(longest[:at_once]), ("continuations", "logprobs")
        with self._admission.enter(0, weight, tenant, memory, fields):
            return spec, await self._scoring.score(tenant.name, texts, at_once, parent)

    async def _resolve_score(self, request: IncomingScore, tenant: Tenant) -> ScoreSpec:
        model, tokenizer = self.offer.served_model(tenant), self._target.tokenizer
        check_score_counts(request.lengths, request.continuations, model)
        return await self._read_message(
            tenant, request.size, lambda: build_score(request.read(), tokenizer, model)
        )

    def end_once(self, key: SessionKey) -> bool:
        """End what `generate_once` began; whether there was anything."""
        return self.live.abort(key)

    def _lock(self, key: SessionKey) -> asyncio.Lock:
        return self._locks.setdefault(key.name, asyncio.Lock())

    async def resume(
        self,
        key: SessionKey,
        prefix: Prefix,
        parent: str = "",
        tenant: Tenant = DEFAULT_TENANT,
        call: Call | None = None,
    ) -> AsyncGenerator[Event]:
        """Attach to a session after the tokens that a reader has: a live one, or a stored one.

        Raises Overloaded, before anything changes, when there is no room, and DataLoss where the
        reader has another text.
        """
        resuming = self._recorder.start_resume(key.name, prefix.offset, parent)
        try:
            return resuming.through(await self._go_on(key, prefix, resuming, tenant, call))
        except BaseException as error:
            resuming.failed(error)
            raise

    async def _go_on(
        self,
        key: SessionKey,
        prefix: Prefix,
        resuming: Resuming,
        tenant: Tenant,
        call: Call | None,
    ) -> AsyncGenerator[Event]:
        # One at a time: a second restore would fence the first.
        async with self._lock(key):
            driver = self.live.get(key.name)
            if driver is not None and await self._is_ours(key, driver, call):
                resuming.joins(self._recorder.traceparent(driver.name))
                return self._read(driver, prefix)
            if (await self._known.find(key)).status is SessionStatus.FINISHED:
                return self._tell_finished(key, prefix, tenant)
            stored = await self._known.get(key)
            with self._come_back(key, stored, tenant, prefix) as place:
                stored, text = await self._takeover(key, stored, call)
                if place is None or stored.status is SessionStatus.FINISHED:
                    return self._tell_finished(key, prefix, tenant)
                driver = self._restore(key, stored, text, resuming.traceparent, place)
            return self._read(driver, prefix)

    async def _is_ours(self, key: SessionKey, driver: Driver, call: Call | None) -> bool:
        """Whether to serve a call for a session from here; other servers hear of the call.

        The store is asked: a later owner may not be known here yet. It is ours if no answer comes.
        """
        try:
            async with asyncio.timeout(OWNER_KNOWN_WITHIN):
                if call is None:
                    term = (await self._known.look(key)).term
                else:
                    term = await shield(self._attend(key, driver, call))
        except (PacelineError, TimeoutError):
            return True
        if term <= driver.state.config.term:
            return True
        driver.fail(Fenced(f"session {key.session_id!r} has another owner now"))
        return False

    def _attend(self, key: SessionKey, live: Driver, call: Call) -> asyncio.Future[int]:
        """Keep others from serving an earlier call of this reader; the session's term."""
        noted = asyncio.ensure_future(self._store.attend(key, live.state.config.term, call))
        noted.add_done_callback(_forget)
        return noted

    async def _tell_finished(
        self, key: SessionKey, prefix: Prefix, tenant: Tenant
    ) -> AsyncGenerator[Event]:
        with self._stored_texts.reader(tenant):
            async with self._stored_texts.turn(tenant):
                stored, rounds = await self._known.get(key), await self._known.rounds(key)
                told = finished_session(stored, rounds, self._target.tokenizer, prefix)
                events: deque[Event] = deque(await self._stored_texts.work(told))
                failure = given_up(stored)
                del stored, rounds, told
            while events:
                yield events.popleft()
            if failure is not None:
                raise failure

    def _read(self, driver: Driver, prefix: Prefix) -> AsyncGenerator[Event]:
        # Log lines of this call carry the session's trace from here on.
        self._recorder.bind(driver.name)
        require_possible(driver.spec, prefix)
        return follow(driver, prefix)

    def _come_back(
        self, key: SessionKey, stored: StoredSession, tenant: Tenant, prefix: Prefix
    ) -> Reservation | nullcontext[None]:
        """A reservation for an unfinished session.

        Its owner keeps it if it could not go on here, or not with the reader's text whole.
        """
        if stored.status not in (SessionStatus.ACTIVE, SessionStatus.PAUSED):
            return nullcontext()
        spec = checked_spec(stored, self._target.worker.vocab_size)
        require_possible(spec, prefix)
        require_prefix(stored, prefix, comes_again=spec.mode.exact_match)
        memory = _logprobs_memory(spec, self._options.logprobs_kept)
        place = self._admission.come_back(_weight(spec), tenant, memory)
        size = _most_stored(len(stored.resolved), spec)
        place.record = self._records.come_back(tenant, key.name, size)
        return place

    async def _takeover(
        self, key: SessionKey, stored: StoredSession, call: Call | None
    ) -> tuple[StoredSession, TextStream | None]:
        """The stored session, finished or owned by this orchestrator, and then its text."""
        if stored.status in (SessionStatus.ACTIVE, SessionStatus.PAUSED):
            stored = await self._known.acquire(key, self._options.owner, call)
        if stored.status is SessionStatus.ABORTED:
            raise SessionAborted(f"session {key.session_id!r} was aborted")
        if stored.status is SessionStatus.FINISHED:
            return stored, None
        spec = load_spec(stored.resolved, stored.prompt)
        text = spec.text_stream(self._target.tokenizer)
        await self._restoring.run(text.steps(stored.committed))
        ending = implied_ending(stored, spec, text)
        if ending is None:
            return stored, text
        length = len(stored.committed)
        await self._store.finish(key, stored.term, length, ending.reason, ending.matched)
        return await self._known.get(key), None

    async def abort(self, key: SessionKey) -> None:
        """End a session at once, or all completions of a request.

        What it holds here is freed, whatever the store answers. Raises StoreError if the store
        is away, NotFound if the session is known neither there nor here.
        """
        self._known.charge(key)
        ended = asyncio.ensure_future(self._store.abort(key))
        here = self.live.abort(key)
        try:
            await ended
        except NotFound:
            keys = await self._known.completions(key)
            if not (here or keys):
                raise
            await gather(*map(self._abort_stored, keys))
        # A resume may have started it again meanwhile.
        self.live.abort(key)

    async def _abort_stored(self, key: SessionKey) -> None:
        with suppress(NotFound):
            await self._store.abort(key)

    async def stored(self, key: SessionKey) -> Outline:
        """What is known of a session.

        Raises NotFound, which names the sessions of a request with several completions.
        """
        return await self._known.find(key)

    async def stored_rounds(
        self, key: SessionKey, offset: int, tenant: Tenant, say: Callable[[SessionRound], T]
    ) -> tuple[StoredSession, list[T]]:
        """What is known of a session, and what to say of its rounds from an output offset on.

        They may be many: saying it takes turns with other work, as reading them does.
        Raises NotFound, and Overloaded.
        """
        with self._stored_texts.reader(tenant):
            await self._known.find(key)
            async with self._stored_texts.turn(tenant):
                # In this order the text holds the tokens of every round.
                rounds = await self._known.rounds(key)
                stored = await self._known.get(key)
                steps = session_rounds(stored, rounds, self._target.tokenizer, offset)
                told = (None if one is None else say(one) for one in steps)
                return stored, await self._stored_texts.work(told)

    @property
    def active_sessions(self) -> int:
        """Sessions at work here."""
        return len(self.live)

    def sessions_of(self, tenant: str) -> int:
        """Sessions of one tenant at work here."""
        return self._admission.sessions_of(tenant)

    def stop_compiling(self) -> None:
        """Send requests that wait for their response formats to another orchestrator."""
        self._forms.close()

    async def drain(self, timeout: float) -> None:
        """Hand over every session, starting ones included; wait at most `timeout` for the store."""
        self._scoring.drain()
        if handed := self.live.hand_over():
            await asyncio.wait(handed, timeout=timeout)

    # --- making sessions --------------------------------------------------------------

    def _require_memory(self, spec: SessionSpec) -> None:
        """Raise InvalidRequest for a session that no connected verifier could ever hold."""
        largest = self._pool.largest_memory()
        most = largest - self._initial_states.block_tokens(spec)
        prompt, wanted = len(spec.prompt), spec.sampling.max_tokens
        if not largest or prompt + wanted <= most:
            return
        if prompt >= most:
            allowed = f"at most {most - 1} tokens: a verifier's K/V holds {largest}"
            raise InvalidRequest("prompt", f"{prompt} tokens", allowed)
        allowed = (
            f"at most {most - prompt} behind the {prompt} tokens of the prompt: "
            f"a verifier's K/V holds {largest}"
        )
        raise InvalidRequest("sampling.max_tokens", wanted, allowed)

    async def _resolve(self, request: IncomingRequest, tenant: Tenant) -> SessionSpec:
        model, tokenizer = self.offer.served_model(tenant), self._target.tokenizer
        check_counts(request.lengths, model)
        spec = await self._read_message(
            tenant, request.size, lambda: build_spec(request.read(), tokenizer, model)
        )
        return self._bounded(spec, tenant) if spec.open_ended else spec

    def _bounded(self, spec: SessionSpec, tenant: Tenant) -> SessionSpec:
        """An output of which no length was asked for, as long as it can be held.

        What a tenant may have in flight is its limit in any case: there it weighs all of it.
        """
        held = self._pool.largest_memory() - self._initial_states.block_tokens(spec)
        most = min(self._admission.most_tokens(tenant), held if held > 0 else math.inf)
        limit, sampling = tenant.limits.max_tokens_in_flight, spec.sampling
        if limit:
            most = min(most, limit // spec.n)
        room = max(1, sampling.min_tokens, min(sampling.max_tokens, most - len(spec.prompt)))
        return replace(spec, sampling=replace(sampling, max_tokens=int(room)), open_ended=not limit)

    async def _read_message(self, tenant: Tenant, size: int, build: Callable[[], T]) -> T:
        """What is built of a message of so many bytes, whose time the tenant is charged with."""

        def read() -> T:
            with nullcontext() if self._work is None else self._work.spent(tenant.name, size):
                return build()

        built = await self.request_threads.read(size, read)
        vetted()
        return built

    def _record(self, spec: SessionSpec) -> NewSession:
        return NewSession(
            digest=spec.digest,
            prompt=spec.prompt,
            seed=spec.seed,
            owner=self._options.owner,
            resolved=dump_spec(spec),
            target_fingerprint=self.offer.fingerprint(),
            ephemeral=spec.ephemeral,
            index=spec.index,
            n=spec.n,
        )

    def _restore(
        self,
        key: SessionKey,
        stored: StoredSession,
        text: TextStream | None,
        parent: str,
        place: Reservation,
    ) -> Driver:
        if stored.term > MOST_TERMS:
            raise DataLoss("the session was resumed too often")
        spec = checked_spec(stored, self._target.worker.vocab_size)
        record = as_new(stored, self._options.owner)
        past = Past(stored.committed, text, beyond(stored, spec), stored.verifier)
        return self.live.begin(key, spec, record, stored.term, parent, place, self._store, past)

    # --- what the workers say ---------------------------------------------------------

    def on_event(self, worker: str, role: Role, event: Any) -> None:
        """Hand a worker's event to the sessions that it is of."""
        self._hub.heard(worker, role, event)

    def on_lost(
        self, worker: str, role: Role, sessions: Iterable[Any], reason: str, *, faulty: bool
    ) -> None:
        """A worker is gone, and these sessions with it."""
        self._hub.lost(worker, role, sessions, reason, faulty=faulty)

    def on_standstill(self, seconds: float) -> None:
        """This process stalled: sessions do not count that time, and check their ownership."""
        self._store.stood_still()
        self.live.stood_still(seconds)

    def on_worker_up(self) -> None:
        """Wake the sessions that wait for a worker."""
        self.live.ask_again()


def _require_equal(live: Driver, spec: SessionSpec) -> None:
    if live.spec.digest != spec.digest:
        raise AlreadyExists(f"session {spec.session!r} exists with other content")


def _expected(spec: SessionSpec) -> int:
    """Tokens of output that a session weighs.

    One that may go on to the end of the context seldom does, and verifiers reserve by need.
    """
    most = spec.sampling.max_tokens
    return min(most, DEFAULT_MAX_TOKENS) if spec.open_ended else most


def _weight(spec: SessionSpec) -> int:
    """Tokens of K/V that are counted for the session, but for its window."""
    return len(spec.prompt) + _expected(spec)


def _stays(key: SessionKey, record: NewSession, place: Reservation, *, ended: bool) -> None:
    """A session does not begin here that was stored, or may be."""
    assert place.record is not None
    size = stored_size(len(record.resolved), len(record.prompt), 0, 0)
    place.record.stay(key.name, size, ended=ended)


def _most_stored(resolved: int, spec: SessionSpec) -> int:
    """Bytes of the store that a session may come to take."""
    return most_stored(resolved, len(spec.prompt), spec.sampling.max_tokens)


def _logprobs_memory(spec: SessionSpec, kept: int) -> int:
    """Bytes that the logprobs of so many of its tokens, and of its prompt, take here."""
    output = memory_of(spec.sampling, min(kept, spec.sampling.max_tokens))
    return output + prompt_memory_of(spec.sampling, len(spec.prompt))


def _at_once(longest: Sequence[int], memory: int, most: float) -> int:
    """How many texts, the longest first, a verifier may have at a time.

    `memory`: tokens that they may take of it, 0: unknown; `most`: that admission may let in.
    """
    count, limit = min(AT_ONCE, len(longest)), min(memory or most, most)
    while count > 1 and sum(longest[:count]) > limit:
        count -= 1
    return count


def _forget(done: asyncio.Future[int]) -> None:
    """Ignore the result."""
    if not done.cancelled():
        done.exception()
