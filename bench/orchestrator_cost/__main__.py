"""What one orchestrator process costs a round and a token, and how long frames stay in it.

The workers compute nothing (or sleep as long as told), everything else is real: gRPC,
Redis, spans to a collector, /metrics. CPU time is that of the orchestrator's process
alone, all its threads; "quiet" is the same at the fastest that a core ran (5th percentile) in
between, by a fixed piece of Python. A round is one session's part in a step. Frames: from one
in hand to its message to the drafter (steps) or to the verifier (drafts); before that, from the
end of a verifier's step until its frame is in hand (came). Compare ratios: a busy machine slows
both sides.
"""

import argparse
import asyncio
from pathlib import Path
from statistics import median
from typing import Any

from bench.command import listed, measuring_parser, run
from bench.orchestrator_cost.measure import HERE, Case, Surroundings, measure
from services.runtime.polling import poll_in_one_thread

STAYS = ("came_us", "steps_us", "drafts_us")


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
    made.add_argument("--chunk", type=int, default=4, help="tokens of a level")
    made.add_argument("--acceptance", type=float, default=0.8, help="of each drafted token")
    made.add_argument("--verify-ms", type=float, default=6.0, help="length of a verifier's step")
    made.add_argument("--draft-ms", type=float, default=2.0, help="length of a drafter's level")
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
    names = [name for name, value in runs[0].items() if isinstance(value, float | int)]
    row: dict[str, Any] = {name: median(run[name] for run in runs) for name in names}
    for kind in STAYS:
        known = [run[kind] for run in runs if run[kind]]
        row[kind] = (
            {part: median(each[part] for each in known) for part in known[0]} if known else None
        )
    return row | {"checkout": "this" if case.tree == HERE else "baseline"}


def show(report: dict[str, Any]) -> str:
    """The report as a table."""
    head = "checkout  states  MB/round  sessions  traced  CPU ms/round  quiet  a token  rounds/s  "
    lines = [head + "per CPU s  µs, p50 / p99: came, in it: steps, drafts"]
    return "\n".join(lines + list(map(_line, report["cases"])))


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['checkout']:<9} {row['states']:>6} {row['mb_per_round']:>9.3f} "
        f"{row['sessions']:>8} {_share(row['sampling']):>7} "
        f"{row['cpu_ms_per_round']:>13.3f} {row['quiet_cpu_ms_per_round']:>6.3f} "
        f"{row['cpu_ms_per_token']:>8.3f} {row['rounds_per_s']:>9.0f} "
        f"{row['rounds_per_cpu_s']:>10.0f}  "
        f"{', '.join(_stayed(row[kind]) for kind in STAYS)}"
    )


def _stayed(parts: dict[str, float] | None) -> str:
    return " / ".join(f"{value:.0f}" for value in parts.values()) if parts else "-"


def _share(sampling: float) -> str:
    return f"{sampling * 100:g}%" if sampling else "off"


if __name__ == "__main__":
    main()
