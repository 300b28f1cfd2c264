"""What a plan foretells, asked of the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import sqrt

from bench.plan.options import Costs, PlanOptions
from bench.simulation import PLAIN, Scenario, simulate

TEXTS = 24
SEARCHING = 10
"""Texts of each run of a search; all of its runs have the same ones."""
MANY = 16
FEW_TOKENS = 32
"""Tokens of each text where more than `MANY` sessions run at a time."""
EVENT_MS = 0.05
"""What the orchestrator computes for an event: sessions that began together drift apart by it."""
LIMITS = 1.05
"""Drafters limit where a token takes so much longer than with a drafter for each session."""
MOST_SESSIONS = 64
"""On one drafter; more are not tried."""
PAYS = 1.02
LONGEST_TRIP_MS = 1000.0
SHORTEST_TRIP_MS = 0.05
PRECISION = 1.1


@dataclass(frozen=True, slots=True)
class Expected:
    """One way to decode. `tokens_per_second` of all sessions together."""

    pacing: str
    ms_per_token: float
    speed_up: float
    tokens_per_second: float
    tokens_per_round: float
    verifier_use: float
    drafter_use: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many verifiers one drafter feeds, or how many drafters a verifier needs."""

    drafters: int
    verifiers: int
    at_least: bool = False
    """More verifiers were not tried."""


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """The answers. `stops_paying_ms`: round trip to the drafter; None = beyond the longest tried.

    0 = it pays nowhere.
    """

    best: str
    expected: tuple[Expected, ...]
    ratio: Ratio
    stops_paying_ms: float | None


def make_plan(options: PlanOptions, costs: Costs) -> CapacityPlan:
    """Simulate what was asked for."""
    planner = Planner(options, costs)
    expected = [planner.expected(PLAIN), *map(planner.expected, options.pacings)]
    best = min(expected[1:], key=lambda one: one.ms_per_token).pacing
    return CapacityPlan(best, tuple(expected), planner.ratio(best), planner.stops_paying(best))


class Planner:
    """Asks the simulator one thing after another."""

    def __init__(self, options: PlanOptions, costs: Costs) -> None:
        self._costs = costs
        self._base = _scenario(options, costs, TEXTS)
        self._search = _scenario(options, costs, SEARCHING)
        self._plain = simulate(replace(self._base, pacing=PLAIN))

    def expected(self, pacing: str) -> Expected:
        """What a pacing brings."""
        report = self._plain
        if pacing != PLAIN:
            report = simulate(replace(self._base, pacing=pacing))
        return Expected(
            pacing,
            report.ms_per_token,
            self._plain.ms_per_token / report.ms_per_token,
            report.tokens_per_second,
            report.tokens_per_round,
            report.verifier_use,
            report.drafter_use if pacing != PLAIN else 0.0,
        )

    # --- drafters for verifiers -----------------------------------------------

    def ratio(self, pacing: str) -> Ratio:
        """The fewest drafters that slow no session, by doubling, then bisection."""
        sessions = self._costs.sessions
        if not self._feeds(pacing, 1, 1):
            return Ratio(_least(1, sessions, lambda n: self._feeds(pacing, n, 1)), 1)
        most, fed = max(1, MOST_SESSIONS // sessions), 1
        while 2 * fed <= most and self._feeds(pacing, 1, 2 * fed):
            fed *= 2
        if 2 * fed > most:
            return Ratio(1, fed, at_least=True)
        return Ratio(1, _least(fed, 2 * fed, lambda n: not self._feeds(pacing, 1, n)) - 1)

    def _feeds(self, pacing: str, drafters: int, verifiers: int) -> bool:
        """Whether so many are hardly slower than a drafter for each session would be."""
        own = self._shared(pacing, self._costs.sessions * verifiers, verifiers)
        return self._shared(pacing, drafters, verifiers) <= LIMITS * own

    def _shared(self, pacing: str, drafters: int, verifiers: int) -> float:
        """Milliseconds per token where so many drafters serve so many full verifiers."""
        concurrency = self._costs.sessions * verifiers
        scenario = replace(
            self._search,
            pacing=pacing,
            drafters=drafters,
            verifiers=verifiers,
            concurrency=concurrency,
            sessions=max(self._search.sessions, 2 * concurrency),
            tokens=_tokens(self._search.tokens, concurrency),
        )
        return simulate(scenario).ms_per_token

    # --- how far away a drafter may be ----------------------------------------

    def stops_paying(self, pacing: str) -> float | None:
        """The round trip to the drafter at which the gain is lost, by bisection."""
        near, far = SHORTEST_TRIP_MS, LONGEST_TRIP_MS
        if not self._pays(pacing, near):
            return 0.0
        if self._pays(pacing, far):
            return None
        while far > PRECISION * near:
            middle = sqrt(near * far)
            near, far = (middle, far) if self._pays(pacing, middle) else (near, middle)
        return sqrt(near * far)

    def _pays(self, pacing: str, trip_ms: float) -> bool:
        scenario = replace(self._search, pacing=pacing, drafter_hop_ms=0.5 * trip_ms)
        return self._plain.ms_per_token >= PAYS * simulate(scenario).ms_per_token


def _scenario(options: PlanOptions, costs: Costs, texts: int) -> Scenario:
    sessions = costs.sessions
    rounds_of_all = max(2, -(-texts // sessions))
    return Scenario(
        text=costs.text,
        verify=costs.verify,
        draft=costs.draft,
        hop_ms=costs.hop_ms,
        cpu_ms=EVENT_MS,
        sessions=sessions * rounds_of_all,
        concurrency=sessions,
        tokens=_tokens(options.tokens, sessions),
        window=options.num_speculative_tokens,
        seed=options.seed,
    )


def _tokens(asked: int, sessions: int) -> int:
    return asked if sessions <= MANY else min(asked, FEW_TOKENS)


def _least(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The least number above `low` for which `holds`, as it does for `high`, by bisection."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def in_words(plan: CapacityPlan, costs: Costs) -> Sequence[str]:
    """The ratio and the round trip, one sentence each."""
    return [_ratio_in_words(plan.ratio, costs.sessions), _trip_in_words(plan)]


def _ratio_in_words(ratio: Ratio, sessions: int) -> str:
    each = f"{sessions} session{'s' if sessions > 1 else ''} each"
    if ratio.drafters > 1:
        return f"{ratio.drafters} drafters per verifier ({each}): with fewer, drafters limit"
    least = "at least " if ratio.at_least else ""
    verifiers = f"{ratio.verifiers} verifier{'s' if ratio.verifiers > 1 else ''}"
    return f"one drafter feeds {least}{verifiers} ({each}) before it limits"


def _trip_in_words(plan: CapacityPlan) -> str:
    trip = plan.stops_paying_ms
    if trip is None:
        return f"speculation pays at every round trip to the drafter up to {LONGEST_TRIP_MS:g} ms"
    if not trip:
        return (
            f"speculation does not pay: less than {PAYS - 1:.0%} faster, however near the drafter"
        )
    return f"speculation stops paying at a round trip to the drafter of {trip:.3g} ms"
