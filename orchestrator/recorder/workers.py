"""The K/V of workers as their orchestrators know it: these gauges outlive the workers.

All orchestrators report the same workers, so take one figure or the maximum, not the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from services.contract.types import Progress, Role
from services.runtime.telemetry import Telemetry, names

_ROLES = (Role.VERIFIER, Role.DRAFTER)


def watch_memory(telemetry: Telemetry, reports: Callable[[Role], Sequence[Progress]]) -> None:
    """Show what the workers of each role hold; `reports` may be called in any thread."""

    def total(of: Callable[[Progress], int]) -> Iterable[tuple[float, tuple[str, ...]]]:
        return [(sum(map(of, reports(role))), (role.value,)) for role in _ROLES]

    telemetry.gauge(names.HEARD_KV_USED, lambda: total(lambda heard: heard.kv_tokens_used))
    telemetry.gauge(names.HEARD_KV_CAPACITY, lambda: total(lambda heard: heard.kv_tokens_capacity))
