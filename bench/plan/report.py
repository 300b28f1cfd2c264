"""What `paceline plan --verifier-price` prints: a table, a sentence, assumptions; or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from math import inf

from rich.console import Console
from rich.table import Table

from bench.plan.fleets import Latency
from bench.plan.money import MoneyPlan, Tried, goal_of, prices_of, traffic_of
from bench.plan.options import Costs, PlanOptions
from bench.plan.prices import Goal, Prices, with_spares
from bench.simulation import PLAIN
from bench.simulation.flags import bare_table

ALWAYS = (
    "simulated: the served round machine, pacing, gathering and chunked prefill",
    "requests come at random (Poisson), and answers are half to one and a half times as long",
    "no prefix of a prompt is cached, and a drafter reads prompts in no time",
    "a drafter beside a verifier takes turns with it",
    "in decoding the steps of the verifier are as given, whatever the context's length",
)


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
    elif best.offer.hour == plain.offer.hour:
        yield f"{best.way.name} costs what plain decoding does, and is faster"
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
    return max(float(getattr(latency, name)) / float(getattr(goal, name)) for name in every)


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
