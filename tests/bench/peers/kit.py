"""Children of a bench as tests start them."""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.peers.process import PeerProcess, PeerSpec, peer_process
from services.cluster.figures import Measured

GREEDY = {"max_tokens": 8, "temperature": 0.0, "top_p": 1.0, "seed": 1}


@asynccontextmanager
async def child(module: str, folder: Path, **settings: Any) -> AsyncIterator[PeerProcess]:
    async with peer_process(PeerSpec("peer", sys.executable, module, settings), folder) as peer:
        yield peer


async def ask(peer: PeerProcess, way: str, token_ids: Sequence[int], **options: Any) -> Measured:
    return await peer.answer(way, token_ids, {**GREEDY, **options})
