"""Workers whose text is known beforehand, and a collector that counts bytes: one process.

    python -m testkit.load_workers FILE VERIFY_MS DRAFT_MS ACCEPTANCE CHUNK [STATES PROMPT]

FILE gets the address of both workers and that of the collector, on one line. Their text is that of
`known_text`. A step of the verifier, or a level of CHUNK tokens of the drafter, sleeps as long as
told (0: not at all), whatever it holds.
STATES: the numbers in a token's hidden states, which the drafter then needs and the verifier
tells, of tokens that it emits and of so many tokens of each PROMPT; 0: none.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from services.drafter.hypotheses.core import HypothesisCore
from services.runtime import serving
from services.runtime.atomic_file import write_line
from services.runtime.host import Emit, WorkerHost
from services.runtime.serving import Served, ServingOptions, serve_worker
from testkit.known_runner import KnownRunner
from testkit.known_text import KnownDrafter, bundle


def collector() -> grpc.aio.Server:
    """Takes any OTLP export and answers that all is well."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Anything(),))
    return server


class _Anything(grpc.GenericRpcHandler):
    def service(self, handler_call_details: Any) -> Any:  # noqa: ARG002
        async def take(_request: bytes, _context: Any) -> bytes:
            return b""

        return grpc.unary_unary_rpc_method_handler(take)


def main() -> int:
    """Serve until SIGTERM."""
    file, verify_ms, draft_ms, acceptance, chunk, *more = sys.argv[1:]
    times = float(verify_ms), float(draft_ms)
    return serving.run(_serve(Path(file), *times, float(acceptance), int(chunk), *map(int, more)))


async def _serve(
    file: Path,
    verify_ms: float,
    draft_ms: float,
    acceptance: float,
    chunk: int,
    states: int = 0,
    prompt: int = 0,
) -> int:
    otlp = collector()
    port = otlp.add_insecure_port("127.0.0.1:0")
    await otlp.start()
    drafter = KnownDrafter(acceptance, chunk, draft_ms, states)
    judging = _host(lambda emit: KnownRunner(emit, "v1", verify_ms, states, prompt))
    drafting = _host(lambda emit: HypothesisCore({"known": drafter}, emit=emit, worker_id="d1"))
    try:
        return await serve_worker(
            ServingOptions(grace=0.1),
            Served(judging, judging.describe(), bundle()),
            Served(drafting, drafting.describe()),
            on_ready=lambda address: write_line(file, f"{address} 127.0.0.1:{port}"),
        )
    finally:
        await otlp.stop(0)


def _host(make: Callable[[Emit], Any]) -> WorkerHost[Any, Any]:
    return WorkerHost(make)


if __name__ == "__main__":
    sys.exit(main())
