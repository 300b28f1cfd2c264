"""`paceline plan`: what each way of a bench would take to serve a traffic: nodes, and their price.

Arithmetic over what `paceline bench` measured, of real models or of given times (`--synthetic`).
A way's tokens a second at so many sessions at once, on one verifier, are taken for what every
verifier of a fleet does that has as many.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any

from bench.figures import Percentiles
from bench.options import PLAIN
from bench.output import Row, table, table_console
from services.cluster.flags import complain
from services.contract.errors import StartError
from services.runtime.options import option, options

UNMET = 3
"""The exit status where nothing that was measured keeps the goals."""


@options
class PlanOptions:
    """The flags of `paceline plan`; None = not given, and not asked for."""

    source: tuple[Path, ...] = option("JSON of paceline bench (--out).", flag="from")
    verifier_price: float | None = option("Of a node of verifiers for an hour.", None, gt=0.0)
    drafter_price: float | None = option(
        "Of a node of drafters, where they run apart; left out: they run beside verifiers.",
        None,
        gt=0.0,
    )
    other_price: float = option("Of all the rest for an hour: orchestrators, Redis.", 0.0, ge=0.0)
    currency: str = option("What stands beside prices.", "", max_length=8)
    verifiers_per_node: int = option("Verifiers that a node holds.", 1, ge=1)
    drafters_per_node: int = option("Drafters that a node holds.", 1, ge=1)
    verifiers_per_drafter: int = option("Verifiers that a drafter apart feeds.", 1, ge=1)
    spare_nodes: int = option("Nodes of each kind more than are needed.", 0, ge=0)
    tokens_per_s: float | None = option("At the peak, of all answers.", None, gt=0.0)
    average_load: float = option(
        "Tokens over the day, as a share of those at the peak.", 1.0, gt=0.0, le=1.0
    )
    goal_token_p50_ms: float | None = option(
        "The most for a token after the first, p50.", None, gt=0.0
    )
    goal_token_p95_ms: float | None = option("The same, p95.", None, gt=0.0)
    goal_first_p95_ms: float | None = option("The most for the first token, p95.", None, gt=0.0)
    as_json: bool = option("One JSON object.", False, flag="json")

    def check(self) -> None:
        """Raises StartError where a price has no traffic, or a traffic no price."""
        if (self.verifier_price is None) != (self.tokens_per_s is None):
            raise StartError("--verifier-price and --tokens-per-s: a plan needs both, or neither")


@dataclass(frozen=True, slots=True)
class Measured:
    """One verifier that serves `sessions` at once one way.

    `token_ms`: after the first, a mean over each answer; both percentiles are over answers.
    """

    way: str
    sessions: int
    tokens_per_s: float
    token_ms: Percentiles
    first_ms: Percentiles

    def keeps(self, options: PlanOptions) -> bool:
        """Whether it is within every goal."""
        pairs = (
            (self.token_ms.p50, options.goal_token_p50_ms),
            (self.token_ms.p95, options.goal_token_p95_ms),
            (self.first_ms.p95, options.goal_first_p95_ms),
        )
        return all(goal is None or figure <= goal for figure, goal in pairs)


@dataclass(frozen=True, slots=True)
class Offer:
    """The nodes that serve the traffic, spare ones included, and prices; None: none were given."""

    measured: Measured
    keeps_goals: bool
    verifier_nodes: int | None = None
    drafter_nodes: int | None = None
    hour: float | None = None
    million_tokens: float | None = None


def run_plan(options: PlanOptions) -> int:
    """Print the plan; the exit status."""
    try:
        options.check()
        found = [one for path in options.source for one in read_bench(path)]
    except StartError as error:
        return complain("plan", error, status=1)
    offers = [offer(one, options) for one in found]
    best, plain = cheapest(offers), cheapest([one for one in offers if one.measured.way == PLAIN])
    if options.as_json:
        content = {"offers": offers, "best": best, "plain": plain}
        print(json.dumps(content, default=asdict, indent=1))
    else:
        console = table_console()
        console.print(table("", columns(options), [_row(one, options) for one in offers]))
        for line in in_words(best, plain, options):
            console.print(line, soft_wrap=True)
    return 0 if best else UNMET


def read_bench(path: Path) -> list[Measured]:
    """What a bench measured, each way at each number of sessions. Raises StartError, naming it."""
    try:
        trials = json.loads(path.read_text())["trials"]
        groups: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
        for trial in trials:
            groups[trial["configuration"], int(trial["concurrency"])].append(trial)
        return [_measured(*way, group) for way, group in groups.items()]
    except OSError as error:
        raise StartError(f"--from: {path} cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise StartError(f"--from: {path} is no result of paceline bench: {error!r}") from None


def _measured(way: str, sessions: int, trials: Sequence[Mapping[str, Any]]) -> Measured:
    results = [result for trial in trials for result in trial["results"]]
    later = [one for one in results if one["tokens"] > 1]
    tokens = [(one["total_s"] - one["first_token_s"]) / (one["tokens"] - 1) for one in later]
    token_ms, first_ms = (
        Percentiles.of(each) for each in (tokens, [one["first_token_s"] for one in results])
    )
    if token_ms is None or first_ms is None:
        raise ValueError("no answers of several tokens")
    rate = sum(one["tokens"] for one in results) / sum(trial["wall_s"] for trial in trials)
    return Measured(way, sessions, rate, token_ms, first_ms)


def offer(measured: Measured, options: PlanOptions) -> Offer:
    """The nodes and prices of a fleet whose verifiers do what was measured."""
    keeps = measured.keeps(options)
    if options.verifier_price is None or options.tokens_per_s is None:
        return Offer(measured, keeps)
    verifiers = ceil(options.tokens_per_s / measured.tokens_per_s)
    apart = options.drafter_price is not None and measured.way != PLAIN
    drafters = ceil(verifiers / options.verifiers_per_drafter) if apart else 0
    nodes = ceil(verifiers / options.verifiers_per_node) + options.spare_nodes
    drafter_nodes = ceil(drafters / options.drafters_per_node) + apart * options.spare_nodes
    hour = options.other_price + nodes * options.verifier_price
    hour += drafter_nodes * (options.drafter_price or 0.0)
    tokens = 3600 * options.tokens_per_s * options.average_load
    return Offer(measured, keeps, nodes, drafter_nodes, hour, 1e6 * hour / tokens)


def cheapest(offers: Sequence[Offer]) -> Offer | None:
    """Of those that keep the goals; the fastest verifier where prices do not tell them apart."""
    kept = [one for one in offers if one.keeps_goals]
    return min(kept, key=lambda one: (one.hour or 0.0, -one.measured.tokens_per_s), default=None)


def columns(options: PlanOptions) -> list[str]:
    """Of the table."""
    priced = ["verifier nodes", "drafter nodes", _priced("an hour", options)]
    priced += [_priced("a million tokens", options)]
    always = ["at once", "tokens/s", "token ms p50 / p95", "first ms p95", "goals"]
    return always + (priced if options.verifier_price is not None else [])


def _priced(what: str, options: PlanOptions) -> str:
    return f"{options.currency} {what}".strip()


def _row(one: Offer, options: PlanOptions) -> Row:
    measured = one.measured
    cells = [
        str(measured.sessions),
        f"{measured.tokens_per_s:.1f}",
        f"{measured.token_ms.p50:.1f} / {measured.token_ms.p95:.1f}",
        f"{measured.first_ms.p95:.0f}",
        "kept" if one.keeps_goals else "missed",
    ]
    if options.verifier_price is not None:
        cells += [str(one.verifier_nodes), str(one.drafter_nodes)]
        cells += [f"{one.hour:.2f}", f"{one.million_tokens:.2f}"]
    return measured.way, cells


def in_words(best: Offer | None, plain: Offer | None, options: PlanOptions) -> Iterator[str]:
    """What follows from the table."""
    if best is None:
        yield "nothing that was measured keeps the goals: measure with fewer sessions at once"
        return
    yield f"best: {best.measured.way}, {best.measured.sessions} at once on each verifier"
    if plain is None:
        yield "plain decoding keeps the goals at no number of sessions that was measured"
    elif best == plain:
        yield "no drafts are cheaper than plain decoding"
    elif best.hour is not None and plain.hour:
        yield f"{1 - best.hour / plain.hour:.0%} less than plain decoding within the same goals"
    else:
        gain = best.measured.tokens_per_s / plain.measured.tokens_per_s
        yield f"{gain:.2f} times the tokens of plain decoding within the same goals"
    yield (
        "assumed: traffic is spread evenly, no verifier has more sessions than were measured, "
        f"and tokens over the day are {options.average_load:.0%} of those at the peak"
    )
