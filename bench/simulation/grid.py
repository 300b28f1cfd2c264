"""Which pacing is best where: acceptance x speed ratio x hop x load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from math import exp, log
from multiprocessing import get_context
from statistics import fmean

from bench.simulation.constants import constants
from bench.simulation.run import simulate
from bench.simulation.scenario import PLAIN, Scenario, StepTime
from bench.simulation.texts import Independent, Runs
from orchestrator.core.pacing import POLICIES

BARE = ", bare"


@dataclass(frozen=True, slots=True)
class Cell:
    """One place of the grid. `ratio`: a verify of one row over a drafted token."""

    acceptance: float
    ratio: float
    hop_ms: float
    load: int


@dataclass(frozen=True, slots=True)
class Grid:
    """What to run: in every cell all `pacings` and constants, on the same `texts` texts each.

    `row` and `session`: what a further row of a session, or a further session, adds to a
    forward, as a share of one with one row. `run_length` 0: places are right independently.
    """

    acceptances: tuple[float, ...] = (0.3, 0.7, 0.9)
    ratios: tuple[float, ...] = (2.0, 6.0)
    hops_ms: tuple[float, ...] = (0.25, 5.0)
    loads: tuple[int, ...] = (1, 8)
    pacings: tuple[str, ...] = ()
    counts: tuple[int, ...] = (1, 3, 6)
    draft_ms: float = 5.0
    row: float = 0.02
    session: float = 0.02
    run_length: float = 0.0
    window: int = 16
    texts: int = 12
    tokens: int = 32
    max_in_flight: int = 1
    # What the orchestrator computes for an event: without it, sessions that began together
    # would share every forward for ever, as no real ones do.
    cpu_ms: float = 0.05
    seed: int = 1

    def cells(self) -> Iterator[Cell]:
        """Every place."""
        for values in product(self.acceptances, self.ratios, self.hops_ms, self.loads):
            yield Cell(*values)

    def scenario(self, cell: Cell) -> Scenario:
        """What is simulated there, at the first pacing."""
        rate, verify_ms = cell.acceptance, cell.ratio * self.draft_ms
        text = Runs.bursty(rate, self.run_length) if self.run_length else Independent(rate)
        return Scenario(
            text=text,
            verify=StepTime(verify_ms, self.row * verify_ms, self.session * verify_ms),
            draft=StepTime(self.draft_ms, session_ms=self.session * self.draft_ms),
            hop_ms=cell.hop_ms,
            cpu_ms=self.cpu_ms,
            sessions=max(self.texts, 2 * cell.load),
            concurrency=cell.load,
            tokens=self.tokens,
            window=self.window,
            max_in_flight=self.max_in_flight,
            seed=self.seed,
        )

    def scenarios(self, cell: Cell) -> dict[str, Scenario]:
        """By the name of the pacing; the constants are named by their k."""
        base = self.scenario(cell)
        found = {PLAIN: replace(base, pacing=PLAIN)}
        for name in self.pacings or every_pacing():
            served = not name.endswith(BARE)
            found[name] = replace(base, pacing=name.removesuffix(BARE), fallback=served)
        for name, policy in constants(self.counts, self.window).items():
            found[name] = replace(base, policy=policy)
        return found


def every_pacing() -> tuple[str, ...]:
    """All that are known, as served and, after a comma, without falling back to plain decoding."""
    return tuple(name + tail for name in POLICIES for tail in ("", BARE))


@dataclass(frozen=True, slots=True)
class CellResult:
    """What came out at one cell: milliseconds per token of every pacing and constant."""

    cell: Cell
    ms: Mapping[str, float]
    pacings: tuple[str, ...]

    @property
    def best_constant(self) -> str:
        """The best k of all, plain decoding (k = 0) among them."""
        return min((name for name in self.ms if name not in self.pacings), key=self.ms.__getitem__)

    @property
    def best(self) -> str:
        """The best pacing."""
        return min(self.pacings, key=self.ms.__getitem__)

    def beside_constant(self, name: str) -> float:
        """Speed of a pacing over that of the best constant; 1 = as good as if k had been known."""
        return self.ms[self.best_constant] / self.ms[name]

    def speed_up(self, name: str) -> float:
        """Speed over plain decoding."""
        return self.ms[PLAIN] / self.ms[name]


def run_cell(grid: Grid, cell: Cell) -> CellResult:
    """Simulate one cell."""
    ms = {name: simulate(one).ms_per_token for name, one in grid.scenarios(cell).items()}
    return CellResult(cell, ms, grid.pacings or every_pacing())


def run_grid(grid: Grid, processes: int = 1) -> Iterator[CellResult]:
    """Simulate every cell, in order."""
    cells = list(grid.cells())
    if processes == 1:
        for cell in cells:
            yield run_cell(grid, cell)
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        yield from pool.map(run_cell, [grid] * len(cells), cells)


@dataclass(frozen=True, slots=True)
class Standing:
    """A pacing over all cells."""

    pacing: str
    best_in: int
    speed_up: float
    beside_constant: float
    worst: float
    worst_at: Cell


def standings(places: Sequence[CellResult]) -> list[Standing]:
    """The pacings, the one that comes nearest to the best constants first.

    Ratios are averaged geometrically.
    """
    found = []
    for name in places[0].pacings:
        worst = min(places, key=lambda place: place.beside_constant(name))
        found.append(
            Standing(
                name,
                sum(place.best == name for place in places),
                _mean([place.speed_up(name) for place in places]),
                _mean([place.beside_constant(name) for place in places]),
                worst.beside_constant(name),
                worst.cell,
            )
        )
    return sorted(found, key=lambda one: -one.beside_constant)


def _mean(ratios: Sequence[float]) -> float:
    return exp(fmean(log(ratio) for ratio in ratios))
