"""`paceline plan --verifier-price`: how many nodes of each kind, and what a million tokens cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from bench.plan.cells import Cells, Requests, Way
from bench.plan.fleets import Latency, Traffic
from bench.plan.options import Costs, PlanOptions, drafting_of
from bench.plan.prices import Goal, Offer, Prices, Search
from bench.plan.trial import Trial, trial
from bench.simulation import PLAIN
from orchestrator.core.pacing import DEFAULT_POLICY
from services.contract.errors import StartError

TRIALS = 4
"""Of an offer, and of dearer ones in its place, until one keeps its goal in the simulator."""
NARROW = 4
"""A narrower window that is tried, too."""


@dataclass(frozen=True, slots=True)
class Tried:
    """An offer, and what the simulator says of it.

    `offer`: None = no number of nodes meets the goal this way. `trial`: None = it was not tried,
    since another way is cheaper. `keeps`: it met the goal in its trial.
    """

    way: Way
    offer: Offer | None
    trial: Trial | None
    at_ease: Latency
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class MoneyPlan:
    """Every way with its cheapest nodes, plain decoding first.

    `best`: the cheapest that keeps its goal in the simulator; None = no number of nodes does.
    """

    ways: tuple[Tried, ...]
    best: Tried | None

    @property
    def plain(self) -> Tried:
        """The same verifiers without drafters."""
        return self.ways[0]


def plan_money(options: PlanOptions, costs: Costs) -> MoneyPlan:
    """Find the cheapest nodes. Raises StartError where a flag is missing."""
    traffic, goal, prices = traffic_of(options), goal_of(options), prices_of(options)
    row_ms = options.prompt_row_ms
    requests = Requests(
        options.prompt_tokens,
        options.answer_tokens,
        costs.verify_row_ms if row_ms is None else row_ms,
    )
    cells = Cells(costs.verify, costs.hop_ms, requests, options.seed)
    search = Search(cells, traffic, goal, prices)
    names: dict[str, list[Tried]] = {}
    for way in ways_of(options, costs):
        reckoned = Tried(way, search.cheapest(way), None, search.at_ease(way))
        names.setdefault(way.name, []).append(reckoned)
    plain, *others = (min(found, key=_rank) for found in names.values())
    ways = {PLAIN: _tried(search, plain), **{one.way.name: one for one in others}}
    best = ways[PLAIN] if ways[PLAIN].keeps else None
    while offers := [one for one in ways.values() if not one.trial and _beats(one, best)]:
        tried = _tried(search, min(offers, key=_rank))
        ways[tried.way.name] = tried
        best = tried if tried.keeps and _beats(tried, best) else best
    return MoneyPlan(tuple(ways.values()), best)


def _beats(one: Tried, best: Tried | None) -> bool:
    return bool(one.offer) and (best is None or _rank(one) < _rank(best))


def _tried(search: Search, reckoned: Tried) -> Tried:
    """The cheapest offer that keeps its goal in the simulator, beginning with the reckoned one."""
    offer, tried = reckoned.offer, reckoned
    for _ in range(TRIALS):
        if offer is None:
            break
        found = trial(search.cells, offer, search.traffic, search.prices)
        keeps = not search.goal.misses(found.latency)
        tried = replace(reckoned, offer=offer, trial=found, keeps=keeps)
        if keeps:
            break
        offer = search.dearer(offer)
    return tried


def _rank(one: Tried) -> tuple[float, float]:
    """Cheaper is better, then faster."""
    return one.offer.hour if one.offer else inf, one.at_ease.token_p95


# --- what was given -----------------------------------------------------------


def ways_of(options: PlanOptions, costs: Costs) -> list[Way]:
    """Plain decoding, then each drafter with each window."""
    pacing = options.pacings[0] if options.pacing else DEFAULT_POLICY
    most = options.num_speculative_tokens
    drafted = [
        Way(one.name, pacing, one.draft, one.text, one.beside, window)
        for one in drafting_of(options, costs)
        for window in sorted({most, min(NARROW, most)})
    ]
    return [Way(PLAIN), *drafted]


def traffic_of(options: PlanOptions) -> Traffic:
    """Raises StartError unless one of two flags is given."""
    requests, tokens = options.requests_per_s, options.tokens_per_s
    if (requests is None) == (tokens is None):
        raise StartError("--verifier-price needs --requests-per-s or --tokens-per-s, one of them")
    per_s = requests if tokens is None else tokens / options.answer_tokens
    assert per_s is not None
    return Traffic(per_s, options.most_sessions, options.most_drafter_sessions)


def goal_of(options: PlanOptions) -> Goal:
    """What is not given is not asked for."""
    return Goal(
        options.goal_token_p50_ms or inf,
        options.goal_token_p95_ms or inf,
        options.goal_first_p95_ms or inf,
    )


def prices_of(options: PlanOptions) -> Prices:
    """A drafter's node costs what a verifier's does, unless that is given."""
    assert options.verifier_price is not None
    drafter = options.drafter_price
    return Prices(
        options.verifier_price,
        options.verifier_price if drafter is None else drafter,
        options.other_price,
        options.verifiers_per_node,
        options.drafters_per_node,
        options.spare_nodes,
        options.average_load,
    )
