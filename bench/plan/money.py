"""`paceline plan --verifier-price`: how many nodes of each kind, and what a million tokens cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from math import inf

from rich.console import Console
from rich.table import Table

from bench.plan.cells import Cells, Requests, Way
from bench.plan.fleets import Latency, Traffic
from bench.plan.options import Costs, PlanOptions, drafting_of
from bench.plan.prices import Goal, Offer, Prices, Search, with_spares
from bench.plan.trial import Trial, trial
from bench.simulation import PLAIN
from bench.simulation.flags import bare_table
from orchestrator.core.pacing import DEFAULT_POLICY
from services.contract.errors import StartError

TRIALS = 4
"""Of an offer, and of dearer ones in its place, until one keeps its goal in the simulator."""
NARROW = 4
"""A narrower window that is tried, too."""
ALWAYS = (
    "simulated: the served round machine, pacing, gathering and chunked prefill",
    "requests come at random (Poisson), and answers are half to one and a half times as long",
    "no prefix of a prompt is cached, and a drafter reads prompts in no time",
    "a drafter beside a verifier takes turns with it",
    "in decoding the steps of the verifier are as given, whatever the context's length",
)


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


# --- what is said -------------------------------------------------------------


def assumptions(options: PlanOptions, costs: Costs) -> list[str]:
    """All that the answer takes for granted."""
    found = [*ALWAYS, *costs.assumptions]
    if options.prompt_row_ms is None:
        found.append(
            "a prompt's token costs the verifier what a draft token does (--prompt-row-ms)"
        )
    if options.drafter_price is None:
        found.append("a node of drafters costs what one of verifiers does (--drafter-price)")
    return found


def show_money(console: Console, plan: MoneyPlan, options: PlanOptions, costs: Costs) -> None:
    """A table, what to buy in a sentence or two, and what was assumed."""
    if options.as_json:
        print(json.dumps(_as_json(plan, options, costs), indent=1))
        return
    console.print(_table(plan, options))
    for line in in_words(plan, options):
        console.print(line, soft_wrap=True)
    for line in assumptions(options, costs):
        console.print(f"assumed: {line}", style="dim", soft_wrap=True)


def _table(plan: MoneyPlan, options: PlanOptions) -> Table:
    unit = f"{options.currency} " if options.currency else ""
    table = bare_table(
        [
            *("", "window", "verifier nodes", "drafter nodes", f"{unit}an hour"),
            *(f"{unit}a million tokens", "token ms p50 / p95", "first ms p95", "simulated"),
        ]
    )
    for one in plan.ways:
        window = str(one.way.window) if one.way.draft else "–"
        if one.offer is None:
            table.add_row(one.way.name, window, *["–"] * 4, _pair(one.at_ease), "", "not met")
            continue
        bought, latency = with_spares(one.offer, prices_of(options)), one.offer.service.latency
        table.add_row(
            one.way.name,
            window,
            str(bought.verifier_nodes),
            str(bought.drafter_nodes) if one.way.apart else "–",
            f"{bought.hour:.2f}",
            f"{bought.million_tokens:.2f}",
            _pair(latency),
            f"{latency.first_p95:.0f}",
            _simulated(one),
        )
    return table


def _simulated(one: Tried) -> str:
    if one.trial is None:
        return "not tried"
    latency = one.trial.latency
    return f"{_pair(latency)}, {latency.first_p95:.0f}{'' if one.keeps else ': missed'}"


def _pair(latency: Latency) -> str:
    return f"{latency.token_p50:.1f} / {latency.token_p95:.1f}"


def in_words(plan: MoneyPlan, options: PlanOptions) -> Iterator[str]:
    """What to buy, against plain decoding; or why nothing does."""
    best, plain = plan.best, plan.plain
    if best is None:
        yield from _unmet(plan, goal_of(options))
        return
    assert best.offer
    if best.way.name == PLAIN:
        yield "plain decoding is cheapest: no drafter meets the goal for less"
    elif not plain.keeps or plain.offer is None:
        yield f"{best.way.name} is cheapest; plain decoding meets the goal with no number of nodes"
    else:
        saved = 1.0 - best.offer.hour / plain.offer.hour
        yield f"{best.way.name} is cheapest: {saved:.0%} less than plain decoding"
    if options.spare_nodes:
        yield f"{options.spare_nodes} of each kind of node stand by, and are paid for"


def _unmet(plan: MoneyPlan, goal: Goal) -> Iterator[str]:
    if any(one.offer for one in plan.ways):
        yield "no offer kept the goal in the simulator: it is at the edge of what can be had"
    else:
        yield "no number of nodes meets the goal"
    names = {
        "token_p50": "--goal-token-p50-ms",
        "token_p95": "--goal-token-p95-ms",
        "first_p95": "--goal-first-p95-ms",
    }
    nearest = min(plan.ways, key=lambda one: _excess(goal, one.at_ease))
    for name in goal.misses(nearest.at_ease):
        found = getattr(nearest.at_ease, name)
        yield f"  {nearest.way.name} with a verifier for each session: {names[name]} {found:.1f}"


def _excess(goal: Goal, latency: Latency) -> float:
    """How many times as long as asked for, at worst."""
    every = ("token_p50", "token_p95", "first_p95")
    return max(float(getattr(latency, name)) / getattr(goal, name) for name in every)


def _as_json(plan: MoneyPlan, options: PlanOptions, costs: Costs) -> dict[str, object]:
    prices = prices_of(options)
    return {
        "currency": options.currency,
        "traffic": asdict(traffic_of(options)),
        "goal": {k: None if v == inf else v for k, v in asdict(goal_of(options)).items()},
        "prices": asdict(prices),
        "costs": asdict(costs),
        "ways": [_way_as_json(one, prices) for one in plan.ways],
        "best": plan.best and plan.best.way.name,
        "in_words": list(in_words(plan, options)),
        "assumptions": assumptions(options, costs),
    }


def _way_as_json(one: Tried, prices: Prices) -> dict[str, object]:
    found: dict[str, object] = {
        "name": one.way.name,
        "window": one.way.window if one.way.draft else None,
        "keeps_goal": one.keeps,
        "at_ease": asdict(one.at_ease),
        "nodes": None,
    }
    if one.offer is not None:
        bought = with_spares(one.offer, prices)
        found |= {
            "nodes": {"verifier": bought.verifier_nodes, "drafter": bought.drafter_nodes},
            "per_hour": bought.hour,
            "per_million_tokens": bought.million_tokens,
            "service": asdict(bought.service),
            "trial": one.trial and asdict(one.trial),
        }
    return found
