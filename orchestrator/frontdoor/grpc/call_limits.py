"""The door of the service: what is checked of a call before its message is even read.

    who calls (token → tenant) → does this process take new sessions → is there room
    → have the tenant's requests cost more than their share → is it this message's turn

A refused call costs a header: its message stays unread. Calls are counted from here to
the end of their task, whatever ends it, so that streams which nobody reads, too, are
bounded, for all tenants together and for each. A tenant that is refused and asks again at
once, and again, is answered late: it has only so many calls to wait in. What is let in reads
its message itself, which is held by nobody else then and is gone as soon as it is done with.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import grpc
from paceline.v1 import inference_pb2 as pb

from orchestrator.frontdoor.admission import Work
from orchestrator.frontdoor.authentication import Identify
from orchestrator.frontdoor.intake import Intake, MessageSlot
from orchestrator.session.tenants import DEFAULT_TENANT, Tenant, TenantLimits
from services.contract.errors import (
    Draining,
    Overloaded,
    PacelineError,
    ProtocolError,
    StreamStalled,
)
from services.runtime.serving import border
from services.runtime.serving.bearer import bearer_of
from services.runtime.serving.health_service import NAME as HEALTH

_Continue = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]

_SERVICE = f"/{pb.DESCRIPTOR.services_by_name['InferenceService'].full_name}/"
# Of the gateway's door, whose stubs need not be installed.
_ENGINE = "/vllm.grpc.engine.VllmEngine/"
# These hold a stream for as long as a session lasts, or cost as much.
_LASTING = ("Generate", "Resume", "Score")
_STREAMS = frozenset({*(_SERVICE + name for name in _LASTING), f"{_ENGINE}Generate"})
# A tenant with a limit of sessions may have so many streams for each, for readers that
# are behind and retries, and a few more.
STREAMS_PER_SESSION, SPARE_STREAMS = 4, 16
# Asked without a token, and bounded by itself: nobody's calls refuse a check.
_HEALTH = f"/{HEALTH}/"
# Reflection, which needs no token.
_NOBODY = Tenant("", TenantLimits(max_sessions=60))
RETRY_SECONDS = 1.0
# A tenant is told at once of so many refusals a second, of the others after a while.
PROMPT_REFUSALS, LATE_SECONDS = 10.0, 1.0
MOST_LATE = 4096
# Until a message is there, from its turn on.
READ_SECONDS = 60.0

_tenant: ContextVar[Tenant] = ContextVar("tenant", default=DEFAULT_TENANT)


def current_tenant() -> Tenant:
    """Whose call this is; to be asked in the call's own task."""
    return _tenant.get()


class Calls:
    """The open calls of one kind, of all tenants (`total`) and of each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()
        self.total = 0

    def enter(self, tenant: Tenant) -> None:
        """Count one more. Raises Overloaded."""
        sessions = tenant.limits.max_sessions
        most = STREAMS_PER_SESSION * sessions + SPARE_STREAMS if sessions else math.inf
        if self._open[tenant.name] >= most or self.total >= self._most:
            raise Overloaded("too many calls are open", RETRY_SECONDS)
        self._open[tenant.name] += 1
        self.total += 1

    def leave(self, tenant: Tenant) -> None:
        """Count one less."""
        self.total -= 1
        self._open[tenant.name] -= 1
        if not self._open[tenant.name]:
            del self._open[tenant.name]


class Refusals:
    """How long a tenant waits to hear that it was refused: the more often, the longer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._late = 0

    def pause(self, tenant: str) -> float:
        """Seconds to wait with the next one."""
        now = self._clock()
        # One second of refusals may come at once, and a few are not forgotten for long.
        since = max(now - 1.0, self._since.get(tenant, 0.0)) + 1.0 / PROMPT_REFUSALS
        self._since[tenant] = min(since, now + LATE_SECONDS)
        return LATE_SECONDS if since > now else 0.0

    async def wait(self, tenant: str) -> None:
        """Wait before a refusal, where there is room to."""
        pause = self.pause(tenant)
        if pause and self._late < MOST_LATE:
            self._late += 1
            try:
                await asyncio.sleep(pause)
            finally:
                self._late -= 1


class Door(grpc.aio.ServerInterceptor):  # type: ignore[misc, unused-ignore]
    """Put it before the servicers of clients, which ask `current_tenant`."""

    def __init__(self, identify: Identify, max_calls: int, work: Work | None = None) -> None:
        """`max_calls`: most streams, and most other calls, open at once.

        `work`: what requests cost, where tenants may use a share of it only.
        """
        self.identify = identify
        self._work, self._refusals, self._intake = work, Refusals(), Intake()
        self.closed = False
        self.streams, self._others = Calls(max_calls), Calls(max_calls)

    def close(self) -> None:
        """No new sessions from now on: this process drains."""
        self.closed = True

    async def intercept_service(
        self, continuation: _Continue, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Let the call in, or answer it with why not."""
        if handler_call_details.method.startswith(_HEALTH):
            return await continuation(handler_call_details)
        try:
            tenant = self._admit(handler_call_details)
            place = None if tenant is _NOBODY else await self._turn(tenant)
        except PacelineError as error:
            if self._work is not None and isinstance(error, Overloaded):
                await self._refusals.wait(current_tenant().name)
            return _refusal(error)
        handler = await continuation(handler_call_details)
        return handler if place is None or handler is None else _reading(handler, place)

    def _admit(self, details: grpc.HandlerCallDetails) -> Tenant:
        method = details.method
        tenant = (
            self.identify(bearer_of(details.invocation_metadata))
            if method.startswith((_SERVICE, _ENGINE))
            else _NOBODY
        )
        _tenant.set(tenant)
        streams = method in _STREAMS
        if streams and self.closed:
            raise Draining("this orchestrator stops and takes no new calls; ask another one")
        calls = self.streams if streams else self._others
        calls.enter(tenant)
        _at_the_end(lambda: calls.leave(tenant))
        self._require_paid(tenant)
        return tenant

    async def _turn(self, tenant: Tenant) -> MessageSlot:
        """A place to read a message in, once there is one."""
        place = await self._intake.enter(tenant.name)
        _at_the_end(place.leave)
        try:
            # Others were read meanwhile.
            self._require_paid(tenant)
        except Overloaded:
            place.leave()
            raise
        return place

    def _require_paid(self, tenant: Tenant) -> None:
        if self._work is not None and (owed := self._work.owed(tenant.name)):
            raise Overloaded("the requests of this tenant cost more than its share", owed)


def _at_the_end(act: Callable[[], None]) -> None:
    """Of this call, whatever ends it."""
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(lambda _: act())


def _reading(
    handler: grpc.RpcMethodHandler[Any, Any], place: MessageSlot
) -> grpc.RpcMethodHandler[Any, Any]:
    """The handler of a single request, made one of a stream: these read for themselves.

    What gRPC reads for a handler it holds until the call ends, as bytes and as a message.
    """
    method: Any = handler.unary_stream or handler.unary_unary
    parse = handler.request_deserializer
    if method is None or parse is None:
        return handler

    def parsed(data: bytes) -> Any:
        place.read(len(data))
        return parse(data)

    async def call(_requests: Any, context: Any) -> Any:
        return await method(await _request(context, place), context)

    if handler.response_streaming:
        make = grpc.stream_stream_rpc_method_handler
    else:
        make = grpc.stream_unary_rpc_method_handler
    return make(call, parsed, handler.response_serializer)


async def _request(context: Any, place: MessageSlot) -> Any:
    """The one message of a call."""
    async with border(context):
        began = time.monotonic()
        try:
            async with place.waiting(READ_SECONDS):
                message = await context.read()
        except TimeoutError:
            waited = time.monotonic() - began
            raise StreamStalled(f"no request came for {waited:.0f} s") from None
        if message is grpc.aio.EOF:
            raise ProtocolError("the call has no request")
        return message


def _refusal(error: PacelineError) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler that fails at once. One of streams, because it need not read its request."""

    async def refuse(_requests: Any, context: Any) -> None:
        async with border(context):
            raise error

    return grpc.stream_stream_rpc_method_handler(refuse)
