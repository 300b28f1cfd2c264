"""The sessions at work in this process: begun, capped as the load allows, ended, counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from paceline.together import MOST_COMPLETIONS, completion_id

from orchestrator.frontdoor.admission import Admission, Reservation
from orchestrator.frontdoor.records import Record
from orchestrator.recorder import Recorder
from orchestrator.session.initial_state import InitialStates
from orchestrator.session.options import Options
from orchestrator.session.output import Beyond
from orchestrator.session.ports import NewSession, SessionKeeper, SessionKey
from orchestrator.session.spec import SessionSpec
from orchestrator.session.totals import SpecTotals
from orchestrator.session.waiting_line import WaitingLine
from orchestrator.steering.driver import Driver
from orchestrator.steering.ports import Hub
from orchestrator.steering.state import new_session
from orchestrator.text import TextStream
from orchestrator.workers.pool import Target, WorkerPool
from services.contract.errors import DataLoss, Draining, Fenced, Impossible
from services.contract.types import ResponseFormat


@dataclass(frozen=True, slots=True)
class Past:
    """What a stored session brings along.

    `text` has taken what was committed, if anything was. `home`: the verifier that it was with.
    """

    committed: tuple[int, ...] = ()
    text: TextStream | None = None
    beyond: Beyond = Beyond.NOT_YET
    home: str = ""


_NONE = Past()


class LiveSessions:
    """Drivers by the names of their sessions' keys. All methods belong to the event loop."""

    def __init__(
        self,
        pool: WorkerPool,
        target: Target,
        recorder: Recorder,
        options: Options,
        admission: Admission,
        initial_states: InitialStates,
        clock: Callable[[], float],
        hub: Hub,
        on_costly: Callable[[ResponseFormat | None, str], object] = lambda *_: None,
    ) -> None:
        """`on_costly` is told of formats that took a session of a tenant too much."""
        self._on_costly = on_costly
        self._pool, self._target, self._recorder = pool, target, recorder
        self._options, self._clock = options, clock
        self._admission, self._initial_states = admission, initial_states
        self._drivers: dict[str, Driver] = {}
        self._line = WaitingLine(self._ask_soon)
        self._speculation = 1.0
        self._ended = SpecTotals()
        self.draining = False
        self._hub = hub

    def __len__(self) -> int:
        return len(self._drivers)

    def get(self, name: str) -> Driver | None:
        """The driver of a session, by the name of its key."""
        return self._drivers.get(name)

    def drivers(self) -> list[Driver]:
        """All of them."""
        return list(self._drivers.values())

    def completions(self, key: SessionKey) -> list[Driver]:
        """Those of a request with several completions."""
        found = (self.get(completion_id(key.name, index)) for index in range(MOST_COMPLETIONS))
        return [driver for driver in found if driver is not None and driver.spec.n > 1]

    def begin(
        self,
        key: SessionKey,
        spec: SessionSpec,
        record: NewSession,
        term: int,
        parent: str,
        place: Reservation,
        keeper: SessionKeeper,
        past: Past = _NONE,
    ) -> Driver:
        """Begin a session, which `keeper` stores, or go on with one that is stored."""
        text = past.text or spec.text_stream(self._target.tokenizer)
        config = self._initial_states.config(key, spec, term, text)
        driver = Driver(
            key,
            spec,
            new_session(config, 0, past.committed),
            text,
            record,
            hub=self._hub,
            workers=self._pool,
            store=keeper,
            recorder=self._recorder,
            on_end=lambda ended: self._forget(ended, place),
            beyond=past.beyond,
            logprobs_kept=self._options.logprobs_kept,
            company=partial(self._company, spec, key.tenant),
            line=self._line,
            clock=self._clock,
            home=past.home,
        )
        self._drivers[driver.name] = driver
        self._recorder.start_generate(
            driver.name, driver.state.config, model=spec.model, traceparent=parent
        )
        self._cap(driver)
        driver.begin()
        self._share_out()
        place.keep()
        if self.draining:
            driver.hand_over(leaving())
        return driver

    def abort(self, key: SessionKey) -> bool:
        """End a session, or a request's completions; whether any is at work here."""
        alone = self.get(key.name)
        drivers = [alone] if alone is not None else self.completions(key)
        for driver in drivers:
            driver.abort()
        return bool(drivers)

    def hand_over(self) -> list[asyncio.Future[object]]:
        """Release all of them, and those that begin from now on; each is done when stored."""
        self.draining = True
        return [driver.hand_over(leaving()) for driver in self.drivers()]

    def stood_still(self, seconds: float) -> None:
        """This process stalled, which they do not count."""
        for driver in self.drivers():
            driver.stood_still(seconds)

    def ask_again(self) -> None:
        """Wake those that wait for a worker; the others have nothing to ask for."""
        for driver in self.drivers():
            if driver.state.lacks_worker:
                driver.wake()

    @property
    def waiting(self) -> int:
        """Those that no verifier has taken yet."""
        return sum(driver.state.verifier is None for driver in self._drivers.values())

    def totals(self) -> SpecTotals:
        """Sums over every session since the start, those at work included."""
        sums = SpecTotals()
        for totals in (self._ended, *(driver.totals for driver in self._drivers.values())):
            sums.join(totals)
        return sums

    def _company(self, spec: SessionSpec, tenant: str) -> list[str]:
        """The verifiers of a session's fellow completions."""
        if spec.n == 1:
            return []
        fellows = self.completions(SessionKey(tenant, spec.request_id))
        return [own.state.verifier.worker for own in fellows if own.state.verifier is not None]

    def _ask_soon(self, name: str) -> None:
        """Let a session that waits for a verifier ask for it, behind what happens now."""
        if (driver := self.get(name)) is not None:
            asyncio.get_running_loop().call_soon(driver.wake)

    def _share_out(self) -> None:
        """Tell every session when the load changes how much speculation it allows."""
        if (share := self._admission.speculation) != self._speculation:
            self._speculation = share
            for driver in self.drivers():
                self._cap(driver)

    def _cap(self, driver: Driver) -> None:
        window = int(self._speculation * driver.state.config.window)
        if driver.state.cap is not None or self._speculation < 1:
            driver.cap(window)

    def _forget(self, driver: Driver, place: Reservation) -> None:
        if self.get(driver.name) is driver:
            del self._drivers[driver.name]
            _leave_record(driver, place.record)
            place.leave()
            self._share_out()
            self._initial_states.learn(driver.key, driver.state.config, driver.totals)
            self._ended.join(driver.totals)
            if driver.given_up is not None and driver.given_up.costly:
                self._on_costly(driver.spec.sampling.response_format, driver.key.tenant)
            error = driver.output.error
            self._recorder.end_generate(
                driver.name, error=type(error).__name__ if error is not None else ""
            )


def _leave_record(driver: Driver, record: Record | None) -> None:
    """Count on what the session leaves in the store, unless another orchestrator has it now."""
    error = driver.output.error
    if record is not None and not isinstance(error, Fenced | DataLoss):
        ended = error is None or isinstance(error, Impossible)
        record.stay(driver.name, driver.stored_size, ended=ended)


def leaving() -> Draining:
    """What callers are told while sessions are handed over."""
    return Draining("this orchestrator stops; the session can be resumed at another one")
