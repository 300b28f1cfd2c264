"""What one orchestrator process costs per round, and how soon a verdict leads to a verify.

The workers compute nothing (or sleep as long as told), everything else is real: gRPC,
Redis, spans to a collector, /metrics. CPU time is that of the orchestrator's process
alone, all its threads; "quiet" is the same at the fastest that a core ran (5th percentile) in
between, by a fixed piece of Python. Compare ratios: a busy machine slows both sides.
"""

import argparse
import asyncio
from pathlib import Path
from statistics import median
from typing import Any

from bench.command import listed, measuring_parser, run
from bench.orchestrator_cost.measure import HERE, Case, Surroundings, measure
from services.runtime.polling import poll_in_one_thread


def main() -> None:
    """Measure and print."""
    poll_in_one_thread()  # inherited by the processes, which start below the command
    run(parser(), measured, show)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = measuring_parser(__doc__)
    made.add_argument("--sessions", type=listed(int), default=[1, 64], help="at once, e.g. 1,64")
    made.add_argument(
        "--sampling",
        type=listed(float),
        default=[1.0, 0.1],
        help="shares of sessions traced; 0: no trace is exported at all",
    )
    made.add_argument(
        "--states",
        type=listed(int),
        default=[0],
        help="numbers in a token's hidden states, which the verifier tells the drafter",
    )
    made.add_argument("--prompt", type=int, default=0, help="tokens of prompts with states")
    made.add_argument("--seconds", type=float, default=6.0, help="measured time of a case")
    made.add_argument("--tokens", type=int, default=256, help="length of every session")
    made.add_argument("--window", type=int, default=8, help="most tokens drafted ahead")
    made.add_argument("--chunk", type=int, default=4, help="tokens in one draft message")
    made.add_argument("--acceptance", type=float, default=0.8, help="of each drafted token")
    made.add_argument("--verify-ms", type=float, default=0.0, help="length of a verifier's step")
    made.add_argument("--draft-ms", type=float, default=0.0, help="length of a drafter's step")
    made.add_argument("--repeats", type=int, default=1, help="of all cases, one after another")
    made.add_argument(
        "--baseline", type=Path, help="another checkout, measured in turns with this one"
    )
    return made


def measured(asked: argparse.Namespace) -> dict[str, Any]:
    """Every case, the median of its repeats."""
    around = Surroundings(
        tokens=asked.tokens,
        seconds=asked.seconds,
        window=asked.window,
        verify_ms=asked.verify_ms,
        draft_ms=asked.draft_ms,
        acceptance=asked.acceptance,
        chunk=asked.chunk,
        prompt=asked.prompt,
    )
    trees = [HERE] + ([asked.baseline.resolve()] if asked.baseline else [])
    cases = [
        Case(sessions, sampling, tree, states)
        for states in asked.states
        for sessions in asked.sessions
        for sampling in asked.sampling
        for tree in trees
    ]
    runs = [
        (case, asyncio.run(measure(case, around))) for _ in range(asked.repeats) for case in cases
    ]
    rows = [_summary(case, [figures for other, figures in runs if other == case]) for case in cases]
    fastest = min(row.pop("fastest_ms") for row in rows)
    for row in rows:
        row["quiet_cpu_ms_per_round"] = row["cpu_ms_per_round"] * fastest / row["yardstick_ms"]
    return {"fastest_ms": fastest, "cases": rows}


def _summary(case: Case, runs: list[dict[str, Any]]) -> dict[str, Any]:
    turnaround = [run["verdict_to_verify_us"] for run in runs if run["verdict_to_verify_us"]]
    names = [name for name, value in runs[0].items() if isinstance(value, float | int)]
    row: dict[str, Any] = {name: median(run[name] for run in runs) for name in names}
    for part in ("p50", "p95", "p99"):
        row[f"verify_{part}_us"] = median(t[part] for t in turnaround) if turnaround else None
    return row | {"checkout": "this" if case.tree == HERE else "baseline"}


def show(report: dict[str, Any]) -> str:
    """The report as a table."""
    head = "checkout  states  MB/round  sessions  traced  CPU ms/round  quiet  "
    lines = [head + "rounds/s  per CPU s  verdict to verify p50 / p95 / p99 µs"]
    for row in report["cases"]:
        turn = " / ".join(str(row[f"verify_{part}_us"]) for part in ("p50", "p95", "p99"))
        lines.append(
            f"{row['checkout']:<9} {row['states']:>6} {row['mb_per_round']:>9.3f} "
            f"{row['sessions']:>8} {_share(row['sampling']):>7} "
            f"{row['cpu_ms_per_round']:>13.3f} {row['quiet_cpu_ms_per_round']:>6.3f} "
            f"{row['rounds_per_s']:>9.0f} {row['rounds_per_cpu_s']:>10.0f}  {turn}"
        )
    return "\n".join(lines)


def _share(sampling: float) -> str:
    return f"{sampling * 100:g}%" if sampling else "off"


if __name__ == "__main__":
    main()
