"""A fleet, or a slice of it, in the simulator under the traffic it was planned for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from bench.plan.cells import SPREAD, Cells, shared
from bench.plan.fleets import Latency, Traffic
from bench.plan.prices import Offer, Prices
from bench.simulation import Scenario, Simulation
from bench.simulation.report import quantile
from bench.simulation.scenario import Prompts
from bench.simulation.session import Account

TOKENS = 4_000
"""Of a trial; larger fleets are tried in a slice."""
FEWEST_REQUESTS = 60
"""That count; those before and after them, while the fleet fills and empties, do not."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What so many verifiers and drafters of the fleet did, over so many requests."""

    verifiers: int
    drafters: int
    requests: int
    latency: Latency
    tokens_per_s: float


def trial(
    cells: Cells, offer: Offer, traffic: Traffic, prices: Prices, tokens: int = TOKENS
) -> Trial:
    """Simulate it in open traffic, for about so many tokens. The same offer has the same trial."""
    verifiers = offer.verifier_nodes * prices.verifiers_per_node
    each = max(1.0, offer.service.sessions)
    requests, answer = cells.requests, cells.requests.answer_tokens
    whole = max(FEWEST_REQUESTS, tokens // answer)
    tried = max(1, min(verifiers, int((whole - FEWEST_REQUESTS) / (4.0 * each))))
    before, after = ceil(2.0 * each * tried), ceil(1.5 * each * tried)
    counted = max(FEWEST_REQUESTS, whole - before - after)
    scenario = replace(
        _scenario(cells, offer, prices, verifiers, tried),
        arrivals_per_s=traffic.requests_per_s * tried / verifiers,
        concurrency=traffic.most * tried,
        prompts=Prompts(requests.prompt_tokens, requests.prompt_row_ms),
        tokens=answer,
        spread=SPREAD,
        sessions=before + counted + after,
    )
    simulation = Simulation(scenario)
    simulation.run()
    ended = {int(one.name): one.account for one in simulation.ended_sessions}
    steady = [ended[number] for number in range(before, before + counted)]
    tokens_per_s = sum(one.tokens for one in steady[1:]) / (steady[-1].asked - steady[0].asked)
    return Trial(tried, scenario.drafters, counted, _latency(steady), tokens_per_s)


def _scenario(cells: Cells, offer: Offer, prices: Prices, verifiers: int, tried: int) -> Scenario:
    """Of so many verifiers, with their share of the drafters, each as busy as in the fleet."""
    way = offer.way
    scenario = replace(cells.scenario(way, 1.0), verifiers=tried, drafters=tried)
    if way.draft is None or not way.apart:
        return scenario
    ratio = verifiers / (offer.drafter_nodes * prices.drafters_per_node)
    drafters = max(1, round(tried / ratio))
    draft = shared(way.draft, ratio * drafters / tried)
    return replace(scenario, drafters=drafters, draft=draft)


def _latency(accounts: list[Account]) -> Latency:
    token = [one.token_ms for one in accounts]
    first = [one.first_ms for one in accounts]
    return Latency(
        quantile(token, 0.5), quantile(token, 0.95), quantile(first, 0.5), quantile(first, 0.95)
    )
