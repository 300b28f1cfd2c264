"""How a store keeps sessions."""

from __future__ import annotations

from dataclasses import dataclass

from services.runtime.redis_client import DEFAULT_PREFIX


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How long things are kept, in milliseconds, and how many rounds at least.

    `ttl_ms` counts from the last write of a session that goes on, `finished_ttl_ms` from its end.
    `relaxed`: what is emitted may be ahead of what is stored; lost tokens are generated again where
    the mode gives the same ones, and missing otherwise.
    """

    prefix: str = DEFAULT_PREFIX
    ttl_ms: int = 3_600_000
    finished_ttl_ms: int = 600_000
    lease_ms: int = 5_000
    rounds_kept: int = 1_000
    relaxed: bool = False
