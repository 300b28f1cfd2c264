"""When a cluster is whole, and when it is at rest: what its processes say of themselves."""

import asyncio
import time

from paceline import PacelineError, ServerInfo

from services.contract.errors import StartError
from testkit.chaos.site import ORCHESTRATOR, START_SECONDS, Cluster

_POLL_SECONDS = 0.1
_ANSWER_SECONDS = 5.0


async def infos(cluster: Cluster) -> list[ServerInfo]:
    """What each orchestrator says, asked directly. Raises PacelineError, OSError."""
    own = [member.spec.ready_file.read_text().strip() for member in cluster.of(ORCHESTRATOR)]
    return [await _info(cluster, address) for address in own]


async def _info(cluster: Cluster, address: str) -> ServerInfo:
    async with cluster.client(address, resume=False) as client:
        return await client.server_info(timeout=_ANSWER_SECONDS)


async def whole(cluster: Cluster, timeout: float = START_SECONDS) -> None:
    """Wait until every process serves and every orchestrator is connected to every worker.

    Raises StartError for a process that has ended, and when the time is over.
    """
    deadline = time.monotonic() + timeout
    while missing := await _missing(cluster):
        if time.monotonic() > deadline:
            raise StartError(f"not whole after {timeout:.0f} s: {missing}")
        await asyncio.sleep(_POLL_SECONDS)


async def _missing(cluster: Cluster) -> str:
    """What a cluster lacks to be whole; empty = nothing."""
    for member in cluster.members:
        member.check()
        if not member.serves:
            return f"{member.name} does not serve"
    workers = {member.name for member in cluster.members if member.role != ORCHESTRATOR}
    try:
        told = await infos(cluster)
    except (PacelineError, OSError) as error:
        return f"an orchestrator does not answer: {type(error).__name__}"
    away = [workers - {one.worker_id for one in i.workers if one.connected} for i in told]
    return "; ".join(f"no link to {', '.join(sorted(some))}" for some in away if some)


async def left_behind(cluster: Cluster, timeout: float = 60.0) -> list[str]:
    """What is still held, anywhere, of sessions that have all ended; empty within the time."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            found = _held(await infos(cluster))
        except (PacelineError, OSError) as error:
            found = [f"an orchestrator does not answer: {type(error).__name__}"]
        if not found or time.monotonic() > deadline:
            return found
        await asyncio.sleep(_POLL_SECONDS)


def _held(told: list[ServerInfo]) -> list[str]:
    live = [f"{info.active_sessions} sessions live" for info in told if info.active_sessions]
    workers = [worker for info in told for worker in info.workers]
    return live + [
        f"{worker.worker_id} holds {worker.sessions} sessions, {worker.kv_tokens_used} K/V"
        for worker in workers
        if worker.sessions or worker.kv_tokens_used
    ]
