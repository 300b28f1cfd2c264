"""Sessions in Redis: the store, its writer, and an embedded server for one machine."""

from orchestrator.store.embedded import EmbeddedRedis
from orchestrator.store.options import StoreOptions
from orchestrator.store.outage import Outage
from orchestrator.store.redis_store import RedisSessionStore, connect
from orchestrator.store.writer import WriterOptions

__all__ = [
    "EmbeddedRedis",
    "Outage",
    "RedisSessionStore",
    "StoreOptions",
    "WriterOptions",
    "connect",
]
