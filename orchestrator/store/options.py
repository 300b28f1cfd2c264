"""How a store keeps sessions."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.session.ports import Durability
from services.runtime.redis_client import DEFAULT_PREFIX


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How long things are kept, in milliseconds, and how many rounds at least.

    `ttl_ms` counts from the last write of a session that goes on,
    `finished_ttl_ms` from its end.
    """

    prefix: str = DEFAULT_PREFIX
    ttl_ms: int = 3_600_000
    finished_ttl_ms: int = 600_000
    lease_ms: int = 5_000
    rounds_kept: int = 1_000
    durability: Durability = Durability.REQUIRED

    @property
    def relaxed(self) -> bool:
        """Whether what is emitted may be ahead of what is stored."""
        return self.durability is Durability.RELAXED
