"""A second server that follows the first, and one day takes its place."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from services.runtime.embedded_redis import EmbeddedRedis
from services.runtime.redis_client import open_client


async def ask(server: EmbeddedRedis, *command: str | bytes) -> Any:
    """What a server says to one command."""
    client = open_client(server.url, timeout_s=60.0)
    try:
        return await client.execute_command(*command)
    finally:
        await client.aclose()


async def follow(replica: EmbeddedRedis, primary: EmbeddedRedis) -> None:
    """Let one server copy another; done when it has all that is there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    await ask(primary, "CONFIG", "SET", "port", port)
    await ask(replica, "REPLICAOF", "127.0.0.1", port)
    await _until(
        replica,
        lambda told: told["master_link_status"] == "up" and not told["master_sync_in_progress"],
        "the replica does not follow",
    )


async def _until(replica: EmbeddedRedis, holds: Callable[[dict[str, Any]], bool], problem: str):
    """Wait for what it tells of its replication."""
    for _ in range(600):
        if holds(await ask(replica, "INFO", "replication")):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(problem)


async def lag(replica: EmbeddedRedis, primary: EmbeddedRedis) -> None:
    """It gets what the other one has now, and from then on nothing more, and takes writes."""
    wanted = (await ask(primary, "INFO", "replication"))["master_repl_offset"]
    await _until(
        replica,
        lambda told: told["slave_repl_offset"] >= wanted,
        "the replica does not catch up",
    )
    await ask(replica, "REPLICAOF", "NO", "ONE")


def take_its_place(replica: EmbeddedRedis, primary: EmbeddedRedis) -> None:
    """The primary dies, and its address leads to the replica."""
    path = Path(primary.url.removeprefix("unix://"))
    os.kill(primary.pid, signal.SIGKILL)
    primary.end_process()
    path.unlink(missing_ok=True)
    path.symlink_to(replica.url.removeprefix("unix://"))
