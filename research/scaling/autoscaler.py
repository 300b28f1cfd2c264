"""How a horizontal pod autoscaler decides, as Kubernetes documents `autoscaling/v2`. Pure.

1. A metric proposes: current × value / target for `Value`, value / target for
   `AverageValue`, rounded up. Within a tenth of the target it proposes what there is.
2. Of several metrics the highest proposal counts. One that cannot be read proposes
   nothing, and while there is such a one nothing is scaled down.
3. Stabilisation: up to the lowest, down to the highest of what was proposed within the
   window of that way, now included.
4. Policies: within each period no more than they allow, counted from the replicas at its
   beginning; the policy that allows most counts.
5. Never below the least or above the most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

from research.scaling.manifests import MetricType, Policy, PolicyType, Rules

TOLERANCE = 0.1
SYNC_S = 15.0
"""How often an autoscaler looks."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Between what, and how fast."""

    least: int
    most: int
    up: Rules
    down: Rules


@dataclass(frozen=True, slots=True)
class Noted:
    """A number at a time: replicas that were proposed, or how many came (went, if negative)."""

    at: float
    count: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What an autoscaler remembers."""

    proposals: tuple[Noted, ...] = ()
    changes: tuple[Noted, ...] = ()


def propose(type: MetricType, value: float, target: float, current: int) -> int:
    """Replicas that one metric asks for; values have three decimals, as the API has them."""
    value = int(1e3 * value) / 1e3
    per_target = value / target
    ratio = per_target if type is MetricType.VALUE else per_target / current
    if abs(ratio - 1) <= TOLERANCE:
        return current
    return _up(current * per_target if type is MetricType.VALUE else per_target)


def decide(
    bounds: Bounds, memory: Memory, now: float, current: int, proposals: Sequence[int | None]
) -> tuple[int, Memory]:
    """The replicas from now on; None = a metric that cannot be read."""
    known = [proposal for proposal in proposals if proposal is not None]
    wanted = max(known, default=current)
    if len(known) < len(proposals) and wanted < current:
        wanted = current
    stable = stabilised(bounds, memory, now, current, wanted)
    after = limited(bounds, memory, now, current, stable)
    return after, _remember(bounds, memory, now, wanted, after - current)


def stabilised(bounds: Bounds, memory: Memory, now: float, current: int, wanted: int) -> int:
    """Up to the lowest, down to the highest of what was wanted lately."""
    lowest = min([wanted, *_since(memory.proposals, now - bounds.up.window_s)])
    highest = max([wanted, *_since(memory.proposals, now - bounds.down.window_s)])
    return min(max(current, lowest), highest)


def limited(bounds: Bounds, memory: Memory, now: float, current: int, wanted: int) -> int:
    """As much of it as policies and bounds allow."""
    if not bounds.least <= current <= bounds.most:
        return min(max(current, bounds.least), bounds.most)
    if wanted > current:
        allowed = max(_highest(policy, memory, now, current) for policy in bounds.up.policies)
        return min(wanted, bounds.most, max(current, allowed))
    if wanted < current:
        allowed = min(_lowest(policy, memory, now, current) for policy in bounds.down.policies)
        return max(wanted, bounds.least, min(current, allowed))
    return current


def _highest(policy: Policy, memory: Memory, now: float, current: int) -> int:
    began_with = _began_with(policy, memory, now, current)
    if policy.type is PolicyType.PODS:
        return began_with + policy.value
    return _up(began_with * (1 + policy.value / 100))


def _lowest(policy: Policy, memory: Memory, now: float, current: int) -> int:
    began_with = _began_with(policy, memory, now, current)
    if policy.type is PolicyType.PODS:
        return began_with - policy.value
    return floor(began_with * (1 - policy.value / 100))


def _began_with(policy: Policy, memory: Memory, now: float, current: int) -> int:
    """The replicas when the period that ends now began."""
    return current - sum(_since(memory.changes, now - policy.period_s))


def _remember(bounds: Bounds, memory: Memory, now: float, wanted: int, change: int) -> Memory:
    """What still counts later, and what is new."""
    ways = (bounds.up, bounds.down)
    window = max(way.window_s for way in ways)
    period = max(policy.period_s for way in ways for policy in way.policies)
    proposals = [one for one in memory.proposals if one.at > now - window]
    changes = [one for one in memory.changes if one.at > now - period]
    changes += [Noted(now, change)] if change else []
    return Memory((*proposals, Noted(now, wanted)), tuple(changes))


def _since(noted: Sequence[Noted], moment: float) -> list[int]:
    return [one.count for one in noted if one.at > moment]


def _up(replicas: float) -> int:
    # 3 × (1 + 10 / 100) is no more than 3.3.
    return ceil(round(replicas, 9))
