"""Sessions in Redis: the store and its writer."""

from orchestrator.store.options import StoreOptions
from orchestrator.store.redis_store import RedisSessionStore, connect
from orchestrator.store.writer import WriterOptions

__all__ = [
    "RedisSessionStore",
    "StoreOptions",
    "WriterOptions",
    "connect",
]
