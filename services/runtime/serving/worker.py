"""A whole worker process: servicers, health, drain, and an end that frees everything.

Most processes serve one role. One that shares an engine between a verifier and a
drafter serves both on one port.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from paceline.worker.v1.verifier_pb2 import VerifierServiceGetTokenizerResponse

from services.contract.errors import NotFound
from services.contract.types import Role, StepTime, TokenizerBundle, WorkerDescription
from services.contract.wire import (
    encode_description,
    encode_progress,
    encode_step_times,
    split_bundle,
)
from services.runtime.host import WorkerHost
from services.runtime.serving.border import border
from services.runtime.serving.cluster_token import link_guards
from services.runtime.serving.health import Health
from services.runtime.serving.lifecycle import stop_on_signals
from services.runtime.serving.links import LinkServer
from services.runtime.serving.options import ServingOptions
from services.runtime.serving.rpcs import RPCS, WorkerRpcs
from services.runtime.serving.server import GrpcServer

logger = logging.getLogger(__name__)

Notice = Callable[[str], Awaitable[None] | None]
"""Told the bound address; may be a coroutine function."""

# How long the last messages of a closed link may take to leave.
_LAST_WORDS_SECONDS = 1.0
_DRAIN_POLL_SECONDS = 0.05


class WorkerServicer:
    """The RPCs of every role. `told`: what its description says beside what it is."""

    def __init__(self, links: LinkServer[Any, Any], role: Served, **told: Any) -> None:
        self._links, self._role = links, role
        self._told = {"worker": encode_description(role.description), **told}

    async def Describe(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
        """What this worker is, and how busy."""
        progress = encode_progress(self._role.host.progress())
        return self._role.rpcs.described(**self._told, progress=progress)

    async def Link(self, request_iterator: Any, context: Any) -> None:  # noqa: N802
        """One link."""
        await self._links.serve(request_iterator, context)


class VerifierServicer(WorkerServicer):
    """The verifier's RPCs: it tells what its steps take, too."""

    def __init__(self, links: LinkServer[Any, Any], role: Served) -> None:
        super().__init__(links, role, step_times=encode_step_times(role.step_times))
        self._parts = [] if role.bundle is None else list(split_bundle(role.bundle))

    async def GetTokenizer(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ARG002, N802
        """The tokenizer in parts of at most 1 MiB."""
        async with border(context):
            if not self._parts:
                raise NotFound("this verifier has no tokenizer to give")
            for part in self._parts:
                yield VerifierServiceGetTokenizerResponse(part=part)


@dataclass(frozen=True, slots=True)
class Served:
    """One role of a process; `bundle` is what a verifier's clients may fetch.

    `step_times`: what it measured of its steps.
    """

    host: WorkerHost[Any, Any]
    description: WorkerDescription
    bundle: TokenizerBundle | None = None
    step_times: tuple[StepTime, ...] = ()

    @property
    def name(self) -> str:
        """How logs speak of it."""
        return f"{self.description.role.value} {self.description.worker_id}"

    @property
    def rpcs(self) -> WorkerRpcs:
        """The service of its role."""
        return RPCS[self.description.role]


async def serve_worker(
    options: ServingOptions,
    *roles: Served,
    on_ready: Notice | None = None,
    on_drain: Notice | None = None,
    stop: asyncio.Event | None = None,
    health: Health | None = None,
) -> int:
    """Serve until `stop` (default: SIGTERM or SIGINT); the exit status.

    Starts and stops the hosts of all `roles`, of which each is another. `on_ready`
    is called once requests are served, and readiness told after it; `on_drain` when no
    more sessions are wanted. `health`: that of the process, where it began before this.
    1 = a host failed. Raises StartError where anybody on the network could open links.
    """
    stop = stop_on_signals() if stop is None else stop
    server = GrpcServer(options, link_guards(options), health)
    links = [_link_server(role) for role in roles]
    services = [_add_servicer(server, *pair) for pair in zip(links, roles, strict=True)]
    async with AsyncExitStack() as stack:
        for role in roles:
            await stack.enter_async_context(_started(role.host))
        address = await server.start(*services, ready=False)
        stack.push_async_callback(server.stop)
        for link in links:
            await stack.enter_async_context(_background(link.report_progress()))
        for role in roles:
            logger.info("%s serves on %s", role.name, address)
        await _notify(on_ready, address)
        await server.set_ready(True)
        failed = not await _until(stop, roles)
        await (server.set_failed() if failed else server.set_ready(False))
        await _notify(on_drain, address)
        if not failed:
            await _drain(links, roles, options.grace)
        for link in links:
            link.close()
        await server.stop(_LAST_WORDS_SECONDS)
    return 1 if failed else 0


def _link_server(role: Served) -> LinkServer[Any, Any]:
    return LinkServer(role.host, role.description, role.rpcs.codec)


def _add_servicer(server: GrpcServer, links: LinkServer[Any, Any], role: Served) -> str:
    """Mount the servicer of the role; the service's full name."""
    servicer = WorkerServicer if role.description.role is Role.DRAFTER else VerifierServicer
    role.rpcs.mount(servicer(links, role), server.grpc)
    return role.rpcs.name


async def _drain(
    links: Sequence[LinkServer[Any, Any]], roles: Sequence[Served], grace: float
) -> None:
    """Wait until the sessions have moved, at most `grace` seconds."""
    for link in links:
        link.drain(grace)
    deadline = asyncio.get_running_loop().time() + grace
    # The cores know nothing of the loop, so their snapshots are polled.
    while any(role.host.progress().sessions for role in roles):
        if asyncio.get_running_loop().time() >= deadline:
            break
        await asyncio.sleep(_DRAIN_POLL_SECONDS)


async def _until(stop: asyncio.Event, roles: Sequence[Served]) -> bool:
    """Wait; True = told to stop, False = a host failed."""
    told = asyncio.create_task(stop.wait())
    failures = [asyncio.create_task(role.host.failure()) for role in roles]
    try:
        await asyncio.wait([told, *failures], return_when=asyncio.FIRST_COMPLETED)
        return not any(failure.done() for failure in failures)
    finally:
        for wait in (told, *failures):
            wait.cancel()


async def _notify(notice: Notice | None, address: str) -> None:
    answer = None if notice is None else notice(address)
    if inspect.isawaitable(answer):
        await answer


@asynccontextmanager
async def _started(host: WorkerHost[Any, Any]) -> AsyncIterator[None]:
    host.start()
    try:
        yield
    finally:
        await host.stop()


@asynccontextmanager
async def _background(work: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
