"""A process of the least loop: a verifier, a drafter or an orchestrator, until it is killed.

Workers write their addresses to the store, where the orchestrator finds them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import grpc
from redis.asyncio import Redis

from bench.loop_floor.drafter import Drafter
from bench.loop_floor.orchestrator import Orchestrator
from bench.loop_floor.verifier import Verifier
from bench.loop_floor.worker import Stepper, Worker
from services.engine.synthetic.pacemaker import Pacemaker
from services.engine.synthetic.spec import SyntheticSpec, read_spec
from services.runtime import serving
from services.runtime.atomic_file import write_line
from services.runtime.tether import die_with

STEPPERS: dict[str, Callable[[SyntheticSpec], Stepper]] = {
    "verifier": lambda spec: Verifier(spec.verifier.costs()),
    "drafter": lambda spec: Drafter(spec.drafter.costs(), spec.agreement().rate),
}
_ADDRESS = "loop:{}"


async def serve(given: argparse.Namespace) -> int:
    """Serve one role; the exit status."""
    server = grpc.aio.server()
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    async with Redis.from_url(given.redis, decode_responses=True) as redis:
        if given.role in STEPPERS:
            spec = read_spec(given.synthetic)
            pacemaker = Pacemaker(whole_steps=spec.whole_steps)
            Worker(STEPPERS[given.role](spec), pacemaker).add_to(server)
            await redis.set(_ADDRESS.format(given.role), given.advertise or address)
            await server.start()
            write_line(given.ready_file, address)
            await server.wait_for_termination()
            return 0
        found = [await redis.get(_ADDRESS.format(role)) for role in STEPPERS]
        links = [grpc.aio.insecure_channel(str(one)) for one in found]
        orchestrator = Orchestrator(redis, *links)
        orchestrator.add_to(server)
        await server.start()
        write_line(given.ready_file, address)
        await orchestrator.run()
    return 0


def main() -> int:
    """Read the command line and serve."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("role", choices=(*STEPPERS, "orchestrator"))
    made.add_argument("--synthetic", type=Path, required=True, help="times and agreement")
    made.add_argument("--redis", required=True, help="URL of the store")
    made.add_argument("--ready-file", type=Path, required=True, help="gets the address")
    made.add_argument("--advertise", help="address that others are told")
    made.add_argument("--tether", type=int, help="process that this one ends with")
    given = made.parse_args()
    if given.tether is not None:
        die_with(given.tether)
    return serving.run(serve(given))


if __name__ == "__main__":
    raise SystemExit(main())
