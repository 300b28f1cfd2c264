r"""The control plane at a size: who decides is real, time is not.

    python -m research.size --sessions 20000 --orchestrators 100 --verifiers 1000 --drafters 100 \
        --subset 32 --verify-ms 1500

Every second of the simulation is a line: sessions open and without a verifier, the most and the
mean on a verifier, verifiers whose K/V is full, the least share of its window that an
orchestrator allows, calls of Redis and of its busiest shard, and CPU seconds of the busiest
orchestrator and the mean one. CPU is this machine's, of the served code without gRPC. Memory:
about 25 KB a session that is open, 5 KB a link.
"""

import argparse
from dataclasses import fields
from typing import Any

from research.command import measuring_parser, run
from research.size.report import report_of, show
from research.size.scenario import Scenario
from research.size.workers import Times
from research.size.world import simulate


def main() -> None:
    """Simulate and print."""
    run(parser(), _simulate, show)


def parser() -> argparse.ArgumentParser:
    """An option for each field of a scenario, and for each time."""
    made = measuring_parser(__doc__)
    for kind, suffix in ((Scenario, ""), (Times, "-ms")):
        for one in fields(kind):
            if one.name != "times":
                default: Any = one.default
                name = f"--{one.name.replace('_', '-')}{suffix}"
                made.add_argument(name, type=type(default), default=default)
    return made


def scenario_of(asked: argparse.Namespace) -> Scenario:
    """What was asked for."""
    times = {one.name: getattr(asked, f"{one.name}_ms") for one in fields(Times)}
    values = {one.name: getattr(asked, one.name) for one in fields(Scenario) if one.name != "times"}
    return Scenario(**values, times=Times(**times))


def _simulate(asked: argparse.Namespace) -> dict[str, Any]:
    return report_of(simulate(scenario_of(asked)))


if __name__ == "__main__":
    main()
