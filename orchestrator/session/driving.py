"""A live session as the front door sees it, whichever protocol its workers speak."""

from __future__ import annotations

import asyncio
from typing import Protocol

from orchestrator.session.output import Output
from orchestrator.session.ports import GivenUp, SessionKey
from orchestrator.session.spec import SessionSpec
from orchestrator.session.totals import SpecTotals
from orchestrator.steering.config import SessionConfig
from services.contract.errors import PacelineError
from services.contract.types import Role


class HasWorker(Protocol):
    """A worker that a session has."""

    @property
    def worker(self) -> str:
        """Its id."""
        ...


class DriverState(Protocol):
    """Where a live session stands."""

    @property
    def config(self) -> SessionConfig:
        """What it was opened with."""
        ...

    @property
    def cap(self) -> int | None:
        """Most draft tokens that the load allows; None = any."""
        ...

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that the verifier found in its cache."""
        ...

    @property
    def verifier(self) -> HasWorker | None:
        """Who verifies it."""
        ...

    @property
    def lacks_worker(self) -> bool:
        """It would take another worker now."""
        ...


class Driver(Protocol):
    """One live session. All belongs to the event loop."""

    @property
    def key(self) -> SessionKey:
        """Whose it is."""
        ...

    @property
    def name(self) -> str:
        """Its name within the cluster."""
        ...

    @property
    def spec(self) -> SessionSpec:
        """What was asked for."""
        ...

    @property
    def state(self) -> DriverState:
        """Where it stands."""
        ...

    @property
    def output(self) -> Output:
        """What readers get."""
        ...

    @property
    def totals(self) -> SpecTotals:
        """Its speculation in numbers."""
        ...

    @property
    def given_up(self) -> GivenUp | None:
        """Why it has ended, where it can never go on."""
        ...

    @property
    def stored_size(self) -> int:
        """About how many bytes of the store it takes."""
        ...

    def begin(self) -> None:
        """The session exists in the store under this owner; work may start."""
        ...

    def abort(self) -> None:
        """End the session at once."""
        ...

    def wake(self) -> None:
        """Look at the time, and for workers that are missing."""
        ...

    def cap(self, window: int) -> None:
        """The load allows so many draft tokens from now on."""
        ...

    def stood_still(self, seconds: float) -> None:
        """This process stalled, which the session does not count."""
        ...

    def detached(self) -> None:
        """Nobody reads any more."""
        ...

    def reattached(self) -> None:
        """Somebody reads again."""
        ...

    def lost(self, worker: str, role: Role, reason: str) -> None:
        """A worker is gone, and the session with it."""
        ...

    def fail(self, error: PacelineError) -> None:
        """End the stream with an error; the stored session does not change."""
        ...

    def hand_over(self, error: PacelineError) -> asyncio.Future[object]:
        """Release the session to whoever resumes it; done when that is stored."""
        ...
