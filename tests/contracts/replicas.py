"""A second server that follows the first, and one day takes its place."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

from orchestrator.sessions import EmbeddedRedis
from services.common.redis_client import open_client


async def ask(server: EmbeddedRedis, *command: str | bytes) -> object:
    """What a server says to one command."""
    client = open_client(server.url)
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
    for _ in range(600):
        info = await ask(replica, "INFO", "replication")
        if info["master_link_status"] == "up" and not info["master_sync_in_progress"]:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the replica does not follow")


async def lag(replica: EmbeddedRedis, primary: EmbeddedRedis) -> None:
    """It gets what the other one has now, and from then on nothing more, and takes writes."""
    wanted = (await ask(primary, "INFO", "replication"))["master_repl_offset"]
    for _ in range(600):
        told = await ask(replica, "INFO", "replication")
        if told["slave_repl_offset"] >= wanted:
            break
        await asyncio.sleep(0.02)
    else:
        raise AssertionError("the replica does not catch up")
    await ask(replica, "REPLICAOF", "NO", "ONE")


def take_its_place(replica: EmbeddedRedis, primary: EmbeddedRedis) -> None:
    """The primary dies, and its address leads to the replica."""
    path = Path(primary.url.removeprefix("unix://"))
    os.kill(primary.pid, signal.SIGKILL)
    primary.end_process()
    path.unlink(missing_ok=True)
    path.symlink_to(replica.url.removeprefix("unix://"))
