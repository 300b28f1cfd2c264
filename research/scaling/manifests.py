"""The scalers, as the manifests have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

KEDA = Path(__file__).parents[2] / "k8s" / "components" / "keda"
TIERS = ("orchestrator", "drafter", "verifier")


class MetricType(Enum):
    """How a metric's value and its target become a number of pods."""

    VALUE = "Value"
    AVERAGE_VALUE = "AverageValue"


class PolicyType(Enum):
    """What a policy counts by."""

    PODS = "Pods"
    PERCENT = "Percent"


@dataclass(frozen=True, slots=True)
class Policy:
    """Most pods, or percent of them, that may come or go within `period_s`."""

    type: PolicyType
    value: int
    period_s: float


@dataclass(frozen=True, slots=True)
class Rules:
    """How fast one way may be; of several policies the one that allows most counts."""

    window_s: float
    policies: tuple[Policy, ...]


@dataclass(frozen=True, slots=True)
class Fallback:
    """So many replicas, or those there are if more, after more failures in a row than these."""

    failure_threshold: int
    replicas: int
    keeps_more: bool


@dataclass(frozen=True, slots=True)
class Trigger:
    """A question to Prometheus, the value that one replica is for, and what wakes the first."""

    name: str
    query: str
    type: MetricType
    threshold: float
    activation: float


@dataclass(frozen=True, slots=True)
class ScaledObject:
    """One tier's scaler. Times in seconds."""

    tier: str
    least: int
    most: int
    polling_s: float
    cooldown_s: float
    fallback: Fallback | None
    up: Rules
    down: Rules
    triggers: tuple[Trigger, ...]


def read_scalers(folder: Path = KEDA) -> tuple[ScaledObject, ...]:
    """The scaler of every tier."""
    return tuple(scaled_object(_load(folder / f"{tier}.yaml")) for tier in TIERS)


def _load(path: Path) -> Mapping[str, Any]:
    content: Mapping[str, Any] = yaml.safe_load(path.read_text())
    return content


def scaled_object(manifest: Mapping[str, Any]) -> ScaledObject:
    """A ScaledObject that says everything itself; raises KeyError where it leaves that to KEDA."""
    spec = manifest["spec"]
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    return ScaledObject(
        spec["scaleTargetRef"]["name"],
        spec["minReplicaCount"],
        spec["maxReplicaCount"],
        spec["pollingInterval"],
        spec["cooldownPeriod"],
        _fallback(spec.get("fallback")),
        rules(behavior["scaleUp"]),
        rules(behavior["scaleDown"]),
        _triggers(spec["triggers"]),
    )


def rules(behavior: Mapping[str, Any]) -> Rules:
    """One way of an autoscaler's behavior."""
    policies = [
        Policy(PolicyType(one["type"]), one["value"], one["periodSeconds"])
        for one in behavior["policies"]
    ]
    return Rules(behavior["stabilizationWindowSeconds"], tuple(policies))


def _fallback(given: Mapping[str, Any] | None) -> Fallback | None:
    if given is None:
        return None
    keeps_more = given["behavior"] == "currentReplicasIfHigher"
    return Fallback(given["failureThreshold"], given["replicas"], keeps_more)


def _triggers(given: Sequence[Mapping[str, Any]]) -> tuple[Trigger, ...]:
    return tuple(
        Trigger(
            one["name"],
            one["metadata"]["query"],
            MetricType(one["metricType"]),
            float(one["metadata"]["threshold"]),
            float(one["metadata"]["activationThreshold"]),
        )
        for one in given
    )
