"""Simulate pacings over a grid, or on published traces.

Prints for every cell of acceptance x ratio (verify over draft) x hop x load what the best
constant number of draft tokens would have been, and how the pacings do beside it: 1 is
as fast. With --traces it replays those instead; with --recorded it drafts texts that a target
wrote with the trees that are served by default, and says where their gain goes. Simulated time:
the round machine and the policies are the served ones, everything else is given latencies.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.output import table_console
from bench.simulation.flags import add_number, add_numbers, bare_table
from bench.simulation.grid import Cell, CellResult, Grid, every_pacing, run_grid, standings
from bench.simulation.recorded_command import add_flags, show_recorded
from bench.simulation.traces import replays
from bench.synthetic.traces import TRACES, load_traces
from services.cluster.flags import complain
from services.contract.errors import StartError

WIDTH = 160
AS_GIVEN = (
    *("acceptances", "ratios", "hops_ms", "row", "session", "run_length"),
    *("texts", "tokens", "window", "max_in_flight", "seed"),
)
"""Fields of a grid that flags of their names fill."""


def main() -> int:
    """Run what the command line asks for; the exit status."""
    console = table_console(WIDTH)
    try:
        given = _parser().parse_args()
        if given.recorded:
            report = show_recorded(given, console)
        else:
            report = _traces(given, console) if given.traces else _grid(given, console)
        if given.json:
            _write(given.json, report)
    except StartError as error:
        return complain("simulation", error, status=1)
    return 0


def _write(path: Path, report: object) -> None:
    try:
        path.write_text(json.dumps(report, indent=1) + "\n")
    except OSError as error:
        raise StartError(f"--json: {path} cannot be written: {error.strerror}") from None


def _grid(given: argparse.Namespace, console: Console) -> object:
    grid = _grid_of(given)
    places = list(run_grid(grid, given.processes))
    console.print(_cells(places))
    console.print(_standings(places))
    texts = sum(len(place.ms) * grid.scenario(place.cell).sessions for place in places)
    console.print(f"{len(places)} cells, {texts} simulated sessions of {grid.tokens} tokens")
    return {"grid": asdict(grid), "places": [asdict(place) for place in places]}


def _cells(places: Sequence[CellResult]) -> Table:
    names = places[0].pacings
    table = bare_table(
        ["acceptance", "ratio", "hop ms", "load", "plain ms", "best k", "its ms", *names, "best"]
    )
    for place in places:
        cell, constant = place.cell, place.best_constant
        table.add_row(
            *_words(cell),
            f"{place.ms['plain']:.1f}",
            constant,
            f"{place.ms[constant]:.1f}",
            *[f"{place.beside_constant(name):.2f}" for name in names],
            place.best,
        )
    return table


def _standings(places: Sequence[CellResult]) -> Table:
    table = bare_table(["pacing", "best in", "x plain", "x best k", "worst", "there"])
    for one in standings(places):
        table.add_row(
            one.pacing,
            str(one.best_in),
            f"{one.speed_up:.2f}",
            f"{one.beside_constant:.3f}",
            f"{one.worst:.2f}",
            " / ".join(_words(one.worst_at)),
        )
    return table


def _words(cell: Cell) -> list[str]:
    return [f"{cell.acceptance:g}", f"{cell.ratio:g}", f"{cell.hop_ms:g}", str(cell.load)]


def _traces(given: argparse.Namespace, console: Console) -> object:
    traces = load_traces(given.traces, "--traces")
    found = list(replays(traces, given.network_ms, given.branches))
    table = bare_table(["trace", "network ms", "", "ms/token", "x synchronous"])
    for one in found:
        table.add_row(
            one.trace,
            f"{one.network_ms:g}",
            one.way,
            f"{one.ms_per_token:.2f}",
            f"{one.over_synchronous:.2f}",
        )
    console.print(table)
    return [asdict(one) for one in found]


# --- the command line ---------------------------------------------------------------


def _grid_of(given: argparse.Namespace) -> Grid:
    pacings = tuple(name.strip() for name in given.pacings.split(";") if name.strip())
    for name in pacings:
        if name not in every_pacing():
            raise StartError(f"--pacings: {name!r} is not one of {'; '.join(every_pacing())}")
    if 0 < given.run_length < 1:
        raise StartError(f"--run-length: {given.run_length:g} is not 0, or between 1 and 1e+06")
    given_values = {name: getattr(given, name) for name in AS_GIVEN}
    return Grid(**given_values, pacings=pacings, loads=tuple(map(int, given.loads)))


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m bench.simulation",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    default = Grid()
    help_text = "how often the drafter is right"
    add_numbers(made, "--acceptances", default.acceptances, help_text, 0, 1)
    add_numbers(made, "--ratios", default.ratios, "a verify over a drafted token", 0.01, 10_000)
    help_text = "one way between orchestrator and worker"
    add_numbers(made, "--hops-ms", default.hops_ms, help_text, 0, 10_000)
    help_text = "sessions at a time on one verifier and one drafter"
    add_numbers(made, "--loads", default.loads, help_text, 1, 1024)
    made.add_argument("--pacings", default="", help="A; B: left out, all; `, bare`: no fallback")
    help_text = "what a further row adds to a forward, as a share"
    add_number(made, "--row", default.row, help_text, 0, 1)
    add_number(made, "--session", default.session, "what a further session adds", 0, 1)
    help_text = "right in runs this long; 0: independently"
    add_number(made, "--run-length", default.run_length, help_text, 0, 1e6)
    add_number(made, "--texts", default.texts, "texts for every pacing and cell", 1, 100_000)
    add_number(made, "--tokens", default.tokens, "tokens of each", 2, 100_000)
    add_number(made, "--window", default.window, "most tokens a drafter is ahead", 1, 64)
    help_text = "blocks under way at a time"
    add_number(made, "--in-flight", default.max_in_flight, help_text, 1, 8, dest="max_in_flight")
    made.add_argument("--seed", type=int, default=default.seed, help="draws the same texts")
    add_number(made, "--processes", 2, "how many to use", 1, 64)
    traces = "JSON of published traces to replay; without FILE those that AMUSD published"
    made.add_argument(
        "--traces", type=Path, nargs="?", const=TRACES, default=None, metavar="FILE", help=traces
    )
    add_numbers(made, "--network-ms", (0.5, 5.5), "there and back, with --traces", 0, 10_000)
    add_numbers(made, "--branches", (0.25, 0.5), "branch hit rates, with --traces", 0, 1)
    add_flags(made)
    made.add_argument("--json", type=Path, default=None, help="also write everything there")
    return made


if __name__ == "__main__":
    sys.exit(main())
