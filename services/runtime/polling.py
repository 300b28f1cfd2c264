"""Which of gRPC's event loops a process uses: the one with few threads."""

from __future__ import annotations

import os
from importlib import metadata

_VARIABLE = "GRPC_EXPERIMENTS"
_POLLER = "-event_engine_client,-event_engine_listener"
# The first release of grpcio whose default is the pool, and the first not tried here.
_POOLED, _UNTRIED = (1, 80), (1, 86)


def poll_in_one_thread() -> None:
    """Have gRPC poll sockets in asyncio's polling thread, as before grpcio 1.80.

    Its event engine passes each event between the threads of a pool, made for dozens of
    cores. Beside a model that uses all cores, a round then costs an orchestrator three
    times the context switches and a third more CPU time.

    Works only before the first `import grpc`. It respects a GRPC_EXPERIMENTS that is set, and
    leaves versions of grpcio alone that may not know these names.
    """
    release = tuple(int(part) for part in metadata.version("grpcio").split(".")[:2])
    if _POOLED <= release < _UNTRIED:
        os.environ.setdefault(_VARIABLE, _POLLER)
