"""KEDA around an autoscaler: from zero, to zero, and what happens when it is blind. Pure.

1. A trigger is active while its value is above its activation threshold; a scaler is while
   any of its triggers is.
2. Active and nothing there: as many as must be, at least one. Not active for longer than
   the cooldown, where there may be none: none.
3. A trigger that failed more often in a row than the fallback allows asks for the
   fallback's replicas. Until then, and where there is no fallback, it asks for nothing:
   nothing is scaled down, and nothing to zero.
4. Everything between the least and the most is the autoscaler's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from research.scaling.autoscaler import Bounds, Memory, decide, propose
from research.scaling.manifests import ScaledObject, Trigger

Values = Mapping[str, float | None]
"""What each trigger's query said, by its name; None = it failed."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """A tier at a moment. `wanted`: by its triggers, before anything holds that back."""

    replicas: int
    wanted: int = 0
    active_at: float = float("-inf")
    failures: Mapping[str, int] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)


def tick(scaler: ScaledObject, before: Scaled, now: float, values: Values) -> Scaled:
    """One look at the metrics."""
    failures = {
        trigger.name: before.failures.get(trigger.name, 0) + 1
        for trigger in scaler.triggers
        if values[trigger.name] is None
    }
    active = any(_active(trigger, values[trigger.name]) for trigger in scaler.triggers)
    active_at = now if active else before.active_at
    awake = _between_none_and_some(scaler, before, now, active, failures)
    if not awake:
        return Scaled(0, 0, active_at, failures)
    proposals = [
        _proposal(scaler, trigger, values[trigger.name], failures, awake)
        for trigger in scaler.triggers
    ]
    bounds = Bounds(max(1, scaler.least), scaler.most, scaler.up, scaler.down)
    replicas, memory = decide(bounds, before.memory, now, awake, proposals)
    wanted = max((one for one in proposals if one is not None), default=awake)
    return Scaled(replicas, wanted, active_at, failures, memory)


def _active(trigger: Trigger, value: float | None) -> bool:
    return value is not None and value > trigger.activation


def _between_none_and_some(
    scaler: ScaledObject, before: Scaled, now: float, active: bool, failures: Mapping[str, int]
) -> int:
    """The replicas that the autoscaler starts from; 0 = it rests."""
    if not before.replicas:
        blind = max((_blind(scaler, count, 0) or 0 for count in failures.values()), default=0)
        return max(1, scaler.least) if active else max(scaler.least, blind)
    cooled = now - before.active_at > scaler.cooldown_s
    idle = scaler.least == 0 and not active and not failures and cooled
    return 0 if idle else before.replicas


def _proposal(
    scaler: ScaledObject,
    trigger: Trigger,
    value: float | None,
    failures: Mapping[str, int],
    current: int,
) -> int | None:
    if value is None:
        return _blind(scaler, failures[trigger.name], current)
    return propose(trigger.type, value, trigger.threshold, current)


def _blind(scaler: ScaledObject, failures: int, current: int) -> int | None:
    """What a trigger asks for that failed so often in a row; None = nothing."""
    fallback = scaler.fallback
    if fallback is None or failures <= fallback.failure_threshold:
        return None
    return max(fallback.replicas, current) if fallback.keeps_more else fallback.replicas
