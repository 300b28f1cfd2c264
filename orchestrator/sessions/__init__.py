"""Sessions in Redis: the store, its writer, and an embedded server for one machine."""

from orchestrator.sessions.embedded import EmbeddedRedis
from orchestrator.sessions.store import RedisSessionStore, StoreOptions, connect
from orchestrator.sessions.writer import WriterOptions

__all__ = ["EmbeddedRedis", "RedisSessionStore", "StoreOptions", "WriterOptions", "connect"]
