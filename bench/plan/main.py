"""`paceline plan`: expected speed, drafters per verifier, how far away they may be; or prices."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console

from bench.plan.capacity import EVENT_MS, LIMITS, PAYS, CapacityPlan, in_words, make_plan
from bench.plan.money import plan_money
from bench.plan.options import Costs, PlanOptions, costs_of
from bench.plan.report import show_money
from bench.simulation.flags import bare_table
from services.cluster.flags import complain
from services.contract.errors import StartError

WIDTH = 160
UNMET = 3
"""The exit status where no number of nodes meets a goal."""

ALWAYS = (
    "simulated: the served round machine and pacing, on texts drawn at random",
    f"the orchestrator computes {EVENT_MS:g} ms for each event of a session",
    f"a drafter limits where a token takes {LIMITS - 1:.0%} longer than with one per session",
    f"speculation pays where it is {PAYS - 1:.0%} faster than plain decoding; the verifier stays "
    "where it is",
)


def run_plan(options: PlanOptions) -> int:
    """Print the plan; the exit status."""
    try:
        costs = costs_of(options)
        if options.verifier_price is not None:
            money = plan_money(options, costs)
            show_money(Console(highlight=False, width=WIDTH), money, options, costs)
            return 0 if money.best else UNMET
        plan = make_plan(options, costs)
    except StartError as error:
        return complain("plan", error, status=1)
    if options.as_json:
        print(json.dumps(_as_json(plan, costs), indent=1))
    else:
        _show(Console(highlight=False), plan, costs)
    return 0


def assumptions(costs: Costs) -> list[str]:
    """All that a plan takes for granted."""
    return [*ALWAYS, *costs.assumptions]


def _as_json(plan: CapacityPlan, costs: Costs) -> dict[str, object]:
    return {"costs": asdict(costs), **asdict(plan), "assumptions": assumptions(costs)}


def _show(console: Console, plan: CapacityPlan, costs: Costs) -> None:
    table = bare_table(
        ["", "ms/token", "speed-up", "tokens/s", "tokens/round", "verifier", "drafter"]
    )
    for one in plan.expected:
        table.add_row(
            one.pacing,
            f"{one.ms_per_token:.2f}",
            f"{one.speed_up:.2f}",
            f"{one.tokens_per_second:.1f}",
            f"{one.tokens_per_round:.2f}",
            f"{one.verifier_use:.0%}",
            f"{one.drafter_use:.0%}" if one.drafter_use else "–",
        )
    console.print(table)
    console.print(f"with {plan.best}:")
    for line in in_words(plan, costs):
        console.print(f"  {line}", soft_wrap=True)
    for line in assumptions(costs):
        console.print(f"assumed: {line}", style="dim", soft_wrap=True)
