"""What a process of another rank than 0 does, from its start to its end."""

from __future__ import annotations

from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from services.engine.native.engine import NativeEngine
from services.engine.native.parallel.messages import LastWords
from services.engine.native.parallel.mirror import Mirror
from services.engine.native.parallel.shards import Shard, join, leave, read_shard
from services.runtime.affinity import keep_to
from services.runtime.logs import in_a_line


def follow(link: Connection[Any, Any], rank: int) -> int:
    """Follow rank 0 until it is done or gone; the exit status."""
    try:
        _follow(link, rank)
    except EOFError:
        return 0
    except Exception as error:
        with suppress(OSError):
            link.send(LastWords(in_a_line(error)))
        return 1
    return 0


def _follow(link: Connection[Any, Any], rank: int) -> None:
    link.send(None)
    shard: Shard = link.recv()
    keep_to(shard.cpus)
    join(shard, rank)
    model = read_shard(shard)
    _meet(link)
    engine = NativeEngine.taking(model, shard.spec)
    _meet(link, engine.kv_tokens_capacity)
    mirror = Mirror(engine)
    while message := link.recv_bytes():
        mirror.follow(message)
    leave()


def _meet(link: Connection[Any, Any], brought: object = None) -> None:
    link.send(brought)
    link.recv()
