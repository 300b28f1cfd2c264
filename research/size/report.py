"""The table of a simulation."""

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from research.command import table
from research.size.world import Outcome

COLUMNS = {
    "s": "d", "open": "d", "waiting": "d", "most/verifier": "d", "mean": ".1f",
    "full": "d", "speculation": ".2f", "Redis/s": "d", "busiest shard": "d",
    "CPU most": ".2f", "CPU mean": ".2f",
}  # fmt: skip


def report_of(outcome: Outcome) -> dict[str, Any]:
    """All that is told, as JSON takes it."""
    # `asdict` would count the items of a Counter.
    heard = {one.name: getattr(outcome.heard, one.name) for one in fields(outcome.heard)}
    waits = {"first_token": heard.pop("first_token"), "pauses": heard.pop("pauses")}
    return {
        "scenario": asdict(outcome.scenario),
        "heard": heard | {name: _quantiles(values) for name, values in waits.items()},
        "figures": outcome.figures,
        "calls": dict(outcome.calls),
        "seconds": [asdict(second) for second in outcome.seconds],
    }


def show(report: dict[str, Any]) -> str:
    """A line for each second, and the sums."""
    rows = [dict(zip(COLUMNS, second.values(), strict=True)) for second in report["seconds"]]
    lines = [table(COLUMNS, rows)] if rows else []
    for name in ("heard", "calls", "figures"):
        told = ", ".join(f"{key} {_number(value)}" for key, value in report[name].items())
        lines.append(f"{name}: {told}")
    return "\n".join(lines)


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {}
    places = {"p50": 0.5, "p99": 0.99, "most": 1.0}
    return {name: ordered[int(share * (len(ordered) - 1))] for name, share in places.items()}


def _number(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} {_number(one)}" for key, one in value.items()) + "}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
