"""The fewest nodes that serve a traffic in time, and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, inf

from bench.plan.cells import RATIOS, Cells, Way
from bench.plan.fleets import Latency, Service, Traffic, at_ease, serve

MOST_NODES = 100_000
HALVINGS = 6
"""Tries at the exact number of drafter nodes, between one that is enough and one that is not."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Milliseconds, of `Latency`; infinite = not asked for."""

    token_p50: float = inf
    token_p95: float = inf
    first_p95: float = inf

    @property
    def token(self) -> float:
        """What a token may take at the mean, whatever the deviation."""
        return min(self.token_p50, self.token_p95)

    def misses(self, latency: Latency) -> tuple[str, ...]:
        """The names of what takes longer."""
        every = ("token_p50", "token_p95", "first_p95")
        return tuple(name for name in every if getattr(latency, name) > getattr(self, name))


@dataclass(frozen=True, slots=True)
class Prices:
    """Of a node's hour, whatever the currency; and how many processes a node holds.

    `other`: an hour of all the rest. `spare_nodes` of each kind stand by. `average_load`: tokens
    over a day beside those at the peak.
    """

    verifier_node: float
    drafter_node: float
    other: float = 0.0
    verifiers_per_node: int = 1
    drafters_per_node: int = 1
    spare_nodes: int = 0
    average_load: float = 1.0

    def hour(self, verifier_nodes: int, drafter_nodes: int) -> float:
        """With the spare nodes of each kind that is used."""
        price = self.other + self.verifier_node * (verifier_nodes + self.spare_nodes)
        if drafter_nodes:
            price += self.drafter_node * (drafter_nodes + self.spare_nodes)
        return price


@dataclass(frozen=True, slots=True)
class Offer:
    """Nodes that meet the goal one way, spare ones not counted, and what they do."""

    way: Way
    verifier_nodes: int
    drafter_nodes: int
    service: Service
    hour: float
    million_tokens: float


class Search:
    """The cheapest offer of each way. Cells are simulated as they are needed."""

    def __init__(self, cells: Cells, traffic: Traffic, goal: Goal, prices: Prices) -> None:
        self.cells, self.traffic, self.goal, self.prices = cells, traffic, goal, prices

    def cheapest(self, way: Way) -> Offer | None:
        """None: no number of nodes meets the goal this way."""
        if not way.apart:
            nodes = self._fewest(lambda count: self.offer(way, count, 0), 1)
            return self.offer(way, nodes, 0) if nodes else None
        best = self._best_ratio(way)
        return self._trimmed(best) if best else None

    def offer(self, way: Way, verifier_nodes: int, drafter_nodes: int) -> Offer | None:
        """These nodes, if they meet the goal."""
        if verifier_nodes < 1 or (way.apart and drafter_nodes < 1):
            return None
        ratio = 1.0
        if way.apart:
            ratio = self._verifiers(verifier_nodes) / (
                drafter_nodes * self.prices.drafters_per_node
            )
        return self._offer(way, verifier_nodes, drafter_nodes, ratio)

    def dearer(self, offer: Offer) -> Offer | None:
        """The cheapest with one node more, for one that does not keep what it promises."""
        nodes = (offer.verifier_nodes + 1, offer.drafter_nodes)
        more = [self.offer(offer.way, *nodes)]
        if offer.way.apart:
            more.append(self.offer(offer.way, offer.verifier_nodes, offer.drafter_nodes + 1))
        return min((one for one in more if one), key=lambda one: one.hour, default=None)

    def at_ease(self, way: Way) -> Latency:
        """What no number of nodes improves: every session has a verifier for itself."""
        return at_ease(self.cells, way, min(RATIOS))

    # --- numbers of nodes -----------------------------------------------------

    def _verifiers(self, nodes: int) -> int:
        return nodes * self.prices.verifiers_per_node

    def _offer(
        self, way: Way, verifier_nodes: int, drafter_nodes: int, ratio: float
    ) -> Offer | None:
        verifiers = self._verifiers(verifier_nodes)
        token_ms = self.goal.token
        service = serve(self.cells, way, self.traffic, verifiers, ratio, token_ms)
        if service is None or self.goal.misses(service.latency):
            return None
        hour = self.prices.hour(verifier_nodes, drafter_nodes)
        tokens = self.traffic.requests_per_s * self.cells.requests.answer_tokens * 3600.0
        million = 1e6 * hour / (tokens * self.prices.average_load)
        return Offer(way, verifier_nodes, drafter_nodes, service, hour, million)

    def _best_ratio(self, way: Way) -> Offer | None:
        """With ever more verifiers for each drafter, from one on, and with ever fewer."""
        start = RATIOS.index(1.0)
        best: Offer | None = None
        for ratios in (RATIOS[start:], RATIOS[start - 1 :: -1]):
            for ratio in ratios:
                offer = self._at_ratio(way, ratio)
                if not offer or (best and offer.hour >= best.hour):
                    break
                best = offer
        return best

    def _at_ratio(self, way: Way, ratio: float) -> Offer | None:
        def made(nodes: int) -> Offer | None:
            drafters = ceil(self._verifiers(nodes) / ratio)
            return self._offer(way, nodes, ceil(drafters / self.prices.drafters_per_node), ratio)

        nodes = self._fewest(made, 1)
        return made(nodes) if nodes else None

    def _trimmed(self, offer: Offer) -> Offer:
        """With as few drafter nodes as its verifiers need, and no verifier node too many."""
        enough, too_few = offer.drafter_nodes, 0
        for _ in range(HALVINGS):
            if enough - too_few <= 1:
                break
            middle = max(too_few + 1, enough - max(1, (enough - too_few) // 2))
            found = self.offer(offer.way, offer.verifier_nodes, middle)
            offer, enough, too_few = (found, middle, too_few) if found else (offer, enough, middle)
        exact = self.offer(offer.way, offer.verifier_nodes, offer.drafter_nodes)
        offer = exact or offer
        while fewer := self.offer(offer.way, offer.verifier_nodes - 1, offer.drafter_nodes):
            offer = fewer
        return offer

    def _fewest(self, made: Callable[[int], Offer | None], low: int) -> int:
        """The fewest nodes with an offer, by doubling, then bisection; 0 = none has."""
        high = low
        while not made(high):
            if high >= MOST_NODES:
                return 0
            low, high = high, min(2 * high, MOST_NODES)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if made(middle) else (middle, high)
        return high


def with_spares(offer: Offer, prices: Prices) -> Offer:
    """The nodes to buy."""
    drafters = offer.drafter_nodes + (prices.spare_nodes if offer.drafter_nodes else 0)
    nodes = offer.verifier_nodes + prices.spare_nodes
    return replace(offer, verifier_nodes=nodes, drafter_nodes=drafters)
