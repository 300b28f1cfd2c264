"""What links between orchestrators and workers cost while nothing is asked of them.

    python -m research.links --links 10,50,200

Two sides, each a process whose peers are in another: an orchestrator's pool with so many
workers, and a worker with links from so many orchestrators. All is real, over gRPC on
loopback: descriptions, streams, heartbeats, failure detectors. Memory is resident,
descriptors and threads are the process's, CPU is that of its counters (never of a clock) a
second, after a rest to let connecting pass.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from signal import SIGTERM
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import psutil

from orchestrator.workers.pool import WorkerPool
from research.command import listed, measuring_parser, run, table
from services.contract.types import Role
from services.runtime import serving
from services.runtime.host import WorkerHost
from services.runtime.readyfile import write_line
from services.runtime.serving import Dialing, Served, ServingOptions, serve_worker
from testkit.child import child
from testkit.load_workers import KnownVerifier, bundle

SETTLE_S = 3.0
SIDES = "orchestrator", "worker"
COLUMNS = {
    "side": "", "links": "d", "MiB": ".1f", "descriptors": "d", "threads": "d",
    "CPU ms/s": ".1f",
}  # fmt: skip


def main() -> None:
    """Measure and print; or be one of the processes that are measured."""
    if len(sys.argv) > 1 and sys.argv[1] in ("workers", "pools"):
        part, file, *more = sys.argv[1:]
        sys.exit(serving.run((_workers if part == "workers" else _pools)(Path(file), more)))
    made = measuring_parser(__doc__)
    made.add_argument("--links", type=listed(int), default=[1, 10, 50, 200])
    made.add_argument("--seconds", type=float, default=10.0, help="measured, of each")
    run(made, _measure, _show)


def _measure(asked: argparse.Namespace) -> dict[str, Any]:
    rows = [measure(side, count, asked.seconds) for side in SIDES for count in asked.links]
    return {"rows": rows}


def _show(report: dict[str, Any]) -> str:
    return table(COLUMNS, report["rows"])


def measure(side: str, links: int, seconds: float) -> dict[str, Any]:
    """A row: what the process on that `side` of so many links takes."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        workers = links if side == "orchestrator" else 1
        pools = 1 if side == "orchestrator" else links
        served = stack.enter_context(_child(folder / "workers", "workers", str(workers)))
        addresses = (folder / "workers").read_text().split()
        called = stack.enter_context(_child(folder / "pools", "pools", str(pools), *addresses))
        process = psutil.Process(called.pid if side == "orchestrator" else served.pid)
        time.sleep(SETTLE_S)
        before, began = sum(process.cpu_times()[:2]), time.monotonic()
        time.sleep(seconds)
        spent = sum(process.cpu_times()[:2]) - before
        passed = time.monotonic() - began
        return {
            "side": side,
            "links": links,
            "MiB": process.memory_info().rss / 2**20,
            "descriptors": process.num_fds(),
            "threads": process.num_threads(),
            "CPU ms/s": 1e3 * spent / passed,
        }


def _child(ready: Path, *command: str) -> Any:
    first, *more = command
    whole = [sys.executable, "-m", "research.links", first, str(ready), *more]
    return child(whole, ready, end=SIGTERM)


# --- the processes ----------------------------------------------------------------------


async def _workers(file: Path, more: Sequence[str]) -> int:
    """So many verifiers, each with a port of its own."""
    stop, loop = serving.stop_on_signals(), asyncio.get_running_loop()
    listening: list[asyncio.Future[str]] = [loop.create_future() for _ in range(int(more[0]))]
    tasks = [
        asyncio.create_task(_worker(number, address, stop))
        for number, address in enumerate(listening)
    ]
    write_line(file, " ".join(await asyncio.gather(*listening)))
    await asyncio.gather(*tasks)
    return 0


async def _worker(number: int, address: asyncio.Future[str], stop: asyncio.Event) -> None:
    host: WorkerHost[Any, Any] = WorkerHost(lambda emit: KnownVerifier(emit, f"v{number}", 0.0))
    options, served = ServingOptions(grace=0.1), Served(host, host.describe(), bundle())
    await serve_worker(options, served, on_ready=address.set_result, stop=stop)


class _Alone(Dialing):
    """Connections that are not shared with other channels, as between processes."""

    def channel(self, address: str) -> grpc.aio.Channel:
        """A channel with a connection of its own."""
        return grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])


async def _pools(file: Path, more: Sequence[str]) -> int:
    """So many orchestrators' pools, all connected to these addresses."""
    stop, (count, *addresses) = serving.stop_on_signals(), more
    pools = [WorkerPool(f"o{number}", dialing=_Alone()) for number in range(int(count))]
    for pool in pools:
        pool.start()
        pool.set_addresses(Role.VERIFIER, addresses)
    for pool in pools:
        await pool.ready(60)
        await pool.settle(60)
    write_line(file, "connected")
    await stop.wait()
    for pool in pools:
        await pool.close()
    return 0


if __name__ == "__main__":
    main()
