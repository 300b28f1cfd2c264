"""Which response formats can be served: checked in child processes, and cached.

The event loop compiles nothing, however small. Callers with equal formats wait for one
answer; once nobody waits, the job is dropped.

A format that took a session of a tenant more time than it may is refused to that tenant for a
while, before it costs anything more.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass

from orchestrator.frontdoor.admission import Work
from orchestrator.session.ranges import ALLOWED_FORMATS
from services.contract.errors import FormatTooCostly, InvalidRequest
from services.contract.types import ResponseFormat
from services.grammar.formats import named_in
from services.grammar.vetting import Vetted, Vetting

KEPT = 4_096
"""Cached answers; each is one short line."""
COSTLY_KEPT, COSTLY_SECONDS = 4_096, 600.0
"""Most formats that are refused as too costly to follow, and for how long."""

_Key = tuple[str, bytes]


@dataclass(slots=True)
class _Asked:
    """A job, its pending answer, and how many callers wait for it."""

    job: Future[Vetted]
    answer: asyncio.Future[Vetted]
    waiting: int = 0


class ResponseFormats:
    """What is known of response formats. All methods belong to the event loop."""

    def __init__(
        self,
        vetting: Vetting | None = None,
        work: Work | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`work`: where what a tenant's formats cost is counted; `clock`: in seconds."""
        self.special: Collection[str] = ()
        """Names of the model's special tokens."""
        self._vetting, self._work, self._clock = vetting or Vetting(), work, clock
        self._costly: OrderedDict[_Key, float] = OrderedDict()
        """Until when each is refused, the first that ends first."""
        self._known: OrderedDict[bytes, str] = OrderedDict()
        self._asked: dict[_Key, _Asked] = {}

    async def require(self, wanted: ResponseFormat | None, tenant: str) -> None:
        """Return if outputs can follow the format; None: no format.

        Raises InvalidRequest if they cannot, or if compiling takes too much, FormatTooCostly if
        following it took this tenant too much lately, and Overloaded if too many formats of this
        tenant, or of all, wait.
        """
        if wanted is None:
            return
        digest = _digest(wanted)
        self._require_cheap((tenant, digest), wanted)
        if complaint := await self._complaint(wanted, tenant, digest):
            field = f"sampling.{wanted.kind}"
            raise InvalidRequest(field, complaint, ALLOWED_FORMATS[wanted.kind])

    def blame(self, wanted: ResponseFormat | None, tenant: str) -> None:
        """Following the format took a session of this tenant too much: no other one for a while."""
        if wanted is None:
            return
        key = (tenant, _digest(wanted))
        self._costly[key] = self._clock() + COSTLY_SECONDS
        self._costly.move_to_end(key)
        if len(self._costly) > COSTLY_KEPT:
            self._costly.popitem(last=False)

    def _require_cheap(self, key: _Key, wanted: ResponseFormat) -> None:
        left = self._costly.get(key, 0.0) - self._clock()
        if left > 0:
            raise FormatTooCostly(
                f"sampling.{wanted.kind}: following it took a session more CPU time than an output "
                f"may; it is refused for {left:.0f} s more"
            )
        self._costly.pop(key, None)

    def close(self) -> None:
        """End the processes; waiting callers get Draining."""
        self._vetting.close()

    async def _complaint(self, wanted: ResponseFormat, tenant: str, digest: bytes) -> str:
        if (known := self._known.get(digest)) is not None:
            self._known.move_to_end(digest)
            return known
        key = (tenant, digest)
        if (asked := self._asked.get(key)) is None:
            asked = self._asked[key] = self._ask(key, wanted)
        asked.waiting += 1
        try:
            return (await asyncio.shield(asked.answer)).complaint
        finally:
            asked.waiting -= 1
            # One that is under way is finished, so that it need not begin again.
            if not asked.waiting and asked.job.cancel():
                self._forget(key, asked)

    def _ask(self, key: _Key, wanted: ResponseFormat) -> _Asked:
        tenant, digest = key
        job = self._vetting.submit(wanted, tenant, named_in(wanted, self.special))
        asked = _Asked(job, asyncio.wrap_future(job))

        def note(done: asyncio.Future[Vetted]) -> None:
            self._forget(key, asked)
            if not done.cancelled() and done.exception() is None:
                vetted = done.result()
                self._known[digest] = vetted.complaint
                if self._work is not None:
                    self._work.spend(tenant, vetted.seconds)
                if len(self._known) > KEPT:
                    self._known.popitem(last=False)

        asked.answer.add_done_callback(note)
        return asked

    def _forget(self, key: _Key, asked: _Asked) -> None:
        if self._asked.get(key) is asked:
            del self._asked[key]


def _digest(wanted: ResponseFormat) -> bytes:
    return hashlib.sha256(json.dumps([wanted.kind, *wanted.source]).encode()).digest()
