"""A local cluster that runs: its store, its workers, its orchestrator."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline import Client, PacelineError

from services.cluster.specs import ClusterOptions, Site, orchestrator_specs, role_of, worker_specs
from services.cluster.supervisor import ProcessSpec, Supervisor, last_line
from services.contract.errors import StartError
from services.contract.types import Role
from services.runtime.affinity import available_cores
from services.runtime.embedded_redis import EmbeddedRedis
from services.runtime.tasks import end
from services.runtime.temporary import for_temporary_files

Report = Callable[[str], None]

_STORE_CHECK_S = 0.5
_TAKEN_S = 15.0
_LOOK_S = 0.05
_ANSWER_S = 2.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster: addresses of orchestrators, and the folder with the logs.

    `workers`: the address and role of each.
    """

    addresses: tuple[str, ...]
    logs: Path
    supervisor: Supervisor
    workers: tuple[tuple[str, Role], ...]

    @property
    def address(self) -> str:
        """Where clients connect: the first orchestrator."""
        return self.addresses[0]

    @property
    def pids(self) -> dict[str, int]:
        """The process id of every process that runs, by name; the store is not among them."""
        return self.supervisor.pids


@contextlib.asynccontextmanager
async def local_cluster(options: ClusterOptions, report: Report) -> AsyncIterator[Cluster]:
    """Start every process, wait until they serve, and end them all on the way out.

    `report` gets one line for everything a person should know. Raises StartError
    with the one line of the process that could not start.
    """
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(for_temporary_files(PacelineError))
        folder = Path(stack.enter_context(_folder()))
        redis = options.redis
        if redis is None:
            redis = await stack.enter_async_context(_store(report))
        site = Site(os.getpid(), folder, redis, available_cores())
        supervisor = Supervisor(report)
        stack.push_async_callback(supervisor.stop)
        workers, orchestrators = worker_specs(options, site), orchestrator_specs(options, site)
        served = await _start(supervisor, options, [*workers, *orchestrators])
        addresses = served[len(workers) :]
        told = tuple(zip(served, map(role_of, workers), strict=False))
        if drafters := {address for address, role in told if role is Role.DRAFTER}:
            for spec, address in zip(orchestrators, addresses, strict=True):
                await _require_drafters(spec, address, drafters)
        yield Cluster(tuple(addresses), folder, supervisor, told)


async def _start(
    supervisor: Supervisor, options: ClusterOptions, specs: Sequence[ProcessSpec]
) -> list[str]:
    """The addresses, once all serve: orchestrators wait for a verifier by themselves.

    On a device that both roles share they start in turn: vLLM takes for its own whatever goes of
    the free memory while it loads.
    """
    if not options.share_a_device:
        return await supervisor.start(specs)
    return [address for one in specs for address in await supervisor.start([one])]


async def _require_drafters(spec: ProcessSpec, address: str, drafters: set[str]) -> None:
    """Wait until an orchestrator has taken in the drafters; StartError with what it says else.

    It would serve without them, and every answer would be plain decoding's. One that tells
    nothing without a token or a certificate is believed.
    """
    until = time.monotonic() + _TAKEN_S
    async with Client(address) as client:
        with contextlib.suppress(PacelineError):
            while missing := drafters - await _taken_in(client):
                if time.monotonic() > until:
                    named = ", ".join(sorted(missing))
                    said = last_line(spec.log_file, " WARNING ")
                    raise StartError(f"{spec.name} does not take the drafter on {named}: {said}")
                await asyncio.sleep(_LOOK_S)


async def _taken_in(client: Client) -> set[str]:
    """Addresses of the drafters that an orchestrator is connected to."""
    workers = (await client.server_info(timeout=_ANSWER_S)).workers
    return {one.address for one in workers if one.role == "drafter" and one.connected}


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="paceline-up-", ignore_cleanup_errors=True)


@contextlib.asynccontextmanager
async def _store(report: Report) -> AsyncIterator[str]:
    """A Redis-compatible server of our own, started again if it dies; its URL."""
    async with EmbeddedRedis(append_only=True) as server:
        keeper = asyncio.create_task(_keep(server, report), name="keep store")
        try:
            yield server.url
        finally:
            await end(keeper)


async def _keep(server: EmbeddedRedis, report: Report) -> None:
    while True:
        await asyncio.sleep(_STORE_CHECK_S)
        if server.pid is None:
            report("the store died; starting it again")
            with contextlib.suppress(StartError):
                # On this thread: the kernel ties the server to the thread that starts it.
                server.restart()
