"""Sessions in Redis: the store, its writer, and an embedded server for one machine."""

from orchestrator.sessions.absence import Absence
from orchestrator.sessions.embedded import EmbeddedRedis
from orchestrator.sessions.options import StoreOptions
from orchestrator.sessions.store import RedisSessionStore, connect
from orchestrator.sessions.writer import WriterOptions

__all__ = [
    "Absence",
    "EmbeddedRedis",
    "RedisSessionStore",
    "StoreOptions",
    "WriterOptions",
    "connect",
]
