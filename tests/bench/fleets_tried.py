"""Fleets that the plan reckons and the simulator runs, over ways to decode, loads and links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.plan.cells import Cells, Requests, Way
from bench.plan.fleets import Latency, Traffic
from bench.plan.prices import Goal, Offer, Prices, Search
from bench.plan.trial import Trial, trial
from bench.simulation import Independent, Runs, StepTime

EPYC = StepTime(28.7, session_ms=0.57, table=((1, 28.7), (2, 32.7), (5, 33.0), (12, 39.9)))
"""One core of docs/benchmarks.md, "One step of the engine", never falling."""
WIDE = StepTime(20.0, 0.05, 0.1, 20.5)
"""Rows cost nearly nothing."""
PLAIN_WAY = Way("plain")
POOL = Way("pool", "thompson", StepTime(3.0, session_ms=0.5), Independent(0.7), window=8)
BESIDE = Way("beside", "thompson", StepTime(0.06), Runs(0.3, 0.6), beside=True, window=4)


@dataclass(frozen=True)
class Case:
    """`load`: sessions that each verifier has at the mean, about."""

    way: Way
    verify: StepTime
    verifiers: int
    drafters: int
    load: int
    hop_ms: float = 0.15
    prompt_tokens: int = 48

    @property
    def name(self) -> str:
        """For a test's id."""
        verify = "epyc" if self.verify is EPYC else "wide"
        size = f"{self.verifiers}+{self.drafters}"
        return f"{self.way.name}-{verify}-{size}-{self.load}-{self.hop_ms:g}-{self.prompt_tokens}"

    def run(self, answer: int = 16) -> tuple[Offer, Trial]:
        """What is reckoned, and what the simulator says."""
        requests = Requests(self.prompt_tokens, answer, self.verify.row_ms or 1.0)
        cells = Cells(self.verify, self.hop_ms, requests, seed=3)
        prices = Prices(1.0, 0.25)
        ratio = self.verifiers / max(1, self.drafters)
        each = cells.at(self.way, ratio, self.load).tokens_per_s
        traffic = Traffic(self.verifiers * each / answer, 3 * self.load + 4, 64)
        search = Search(cells, traffic, Goal(), prices)
        offer = search.offer(self.way, self.verifiers, self.drafters)
        assert offer is not None
        return offer, trial(cells, offer, traffic, prices, tokens=4000)


CASES = [
    Case(PLAIN_WAY, EPYC, 3, 0, 4),
    Case(PLAIN_WAY, WIDE, 2, 0, 6, prompt_tokens=256),
    Case(POOL, EPYC, 1, 1, 1),
    Case(BESIDE, EPYC, 1, 0, 1),
    Case(BESIDE, EPYC, 2, 0, 3),
]


def errors(reckoned: Latency, simulated: Latency) -> Iterator[tuple[str, float]]:
    """By figure, relative to what the simulator says."""
    for name in ("token_p50", "token_p95", "first_p50", "first_p95"):
        right = getattr(simulated, name)
        yield name, getattr(reckoned, name) / right - 1.0
