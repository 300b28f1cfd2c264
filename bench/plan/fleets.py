"""So many verifiers under open traffic: how many sessions each has, and what a request then takes.

Requests come at random (Poisson) and go to the verifier with the fewest sessions, so the
number of sessions is a birth-death chain: it grows with every request, and shrinks at the rate at
which cells of that many finish answers. Where sessions share what serves them, as rows share a
verifier's steps, that chain's distribution does not depend on how answers' lengths are distributed
(Kelly, Reversibility and Stochastic Networks, 1979, chapter 3). Beyond the most that the verifiers
hold, requests wait in line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt

from bench.plan.cells import QUANTILES, Cell, Cells, Way, between, points

POOL = 64
"""Verifiers; larger fleets are reckoned as several pools of so many: they would wait less still."""
SMOOTHED = 2.0 / 3.0
"""Of the variance of the number of sessions, that which is left in its mean over the stay of one.

With equal stays two moments x of a stay apart share 1 - x of their sessions; the mean of that
over all pairs of moments of a stay is 2/3.
"""
NEGLIGIBLE = -9.0
"""Logarithm of a probability beside the largest."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """At the peak. `most`: sessions that a verifier, and a drafter, hold at a time."""

    requests_per_s: float
    most: int
    most_per_drafter: int


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds: a token after the first, and the first token since it was asked for."""

    token_p50: float
    token_p95: float
    first_p50: float
    first_p95: float


@dataclass(frozen=True, slots=True)
class Service:
    """What a fleet does at the peak. Sessions and tokens are those of one verifier."""

    latency: Latency
    sessions: float
    sessions_p95: float
    tokens_per_s: float
    waits: float
    """The share of requests that wait in line."""


def serve(
    cells: Cells, way: Way, traffic: Traffic, verifiers: int, ratio: float, token_ms: float
) -> Service | None:
    """What such a fleet does; None = it is overloaded, or takes longer than `token_ms` for a token.

    `ratio`: verifiers for each drafter.
    """
    pool = min(verifiers, POOL)
    rate = traffic.requests_per_s * pool / verifiers
    most = traffic.most
    if way.apart:
        most = min(most, max(1, int(traffic.most_per_drafter / ratio)))
    answer = cells.requests.answer_tokens
    if not _keeps_up(cells, way, ratio, most, rate * answer / pool, token_ms):
        return None
    busy = _occupancy(cells, way, ratio, pool, most, rate)
    if busy is None:
        return None
    latency = _latency(busy.found)
    return Service(
        replace(latency, first_p95=latency.first_p95 + busy.wait_p95_ms),
        busy.sessions / pool,
        _at([(float(cell.sessions), weight) for weight, cell in busy.found], 0.95),
        rate * answer / pool,
        busy.waits,
    )


def at_ease(cells: Cells, way: Way, ratio: float) -> Latency:
    """What a session takes that has a verifier for itself: no number of nodes brings less."""
    return _latency([(1.0, cells.at(way, ratio, 1))])


def _keeps_up(
    cells: Cells, way: Way, ratio: float, most: int, tokens_per_s: float, token_ms: float
) -> bool:
    """Whether some number of sessions brings so many tokens a second, in time. The fewest first."""
    for sessions in points(most):
        cell = cells.at(way, ratio, sessions)
        if cell.token_ms > token_ms:
            return False
        if cell.tokens_per_s > tokens_per_s:
            return True
    return False


@dataclass(frozen=True, slots=True)
class _Occupancy:
    """`found`: cells, and the share of requests in each; `sessions`: of the pool, at the mean."""

    found: list[tuple[float, Cell]]
    sessions: float
    waits: float
    wait_p95_ms: float


def _occupancy(
    cells: Cells, way: Way, ratio: float, pool: int, most: int, rate: float
) -> _Occupancy | None:
    """The chain's stationary distribution; None = more come than end where all is full.

    As many requests come to n - 1 sessions as end among n, so that is how cells are weighted.
    """
    answer, full = cells.requests.answer_tokens, pool * most
    states: list[tuple[float, float, Cell]] = []
    logarithm = highest = 0.0
    for sessions in range(1, full + 1):
        cell, tokens_per_s = _mixed(cells, way, ratio, sessions, pool)
        ends = tokens_per_s / answer
        logarithm += log(rate / ends)
        highest = max(highest, logarithm)
        states.append((logarithm, ends, cell))
        if logarithm < highest + NEGLIGIBLE and ends > rate:
            break
    weights = [exp(one - highest) for one, _, _ in states]
    last_ends = states[-1][1]
    if last_ends <= rate:
        return None
    # Those of a full pool with a line of any length before it.
    line = weights[-1] / (1.0 - rate / last_ends) if len(states) == full else 0.0
    weights[-1] = line or weights[-1]
    whole = exp(-highest) + sum(weights)
    ended = sum(weight * ends for weight, (_, ends, _) in zip(weights, states, strict=True))
    waits = line / whole
    return _Occupancy(
        [
            (weight * ends / ended, cell)
            for weight, (_, ends, cell) in zip(weights, states, strict=True)
        ],
        sum(weight * count for count, weight in enumerate(weights, 1)) / whole,
        waits,
        1e3 * log(waits / 0.05) / (last_ends - rate) if waits > 0.05 else 0.0,
    )


def _mixed(cells: Cells, way: Way, ratio: float, sessions: int, pool: int) -> tuple[Cell, float]:
    """The mean cell of a pool, and its tokens a second: some verifiers have one session more."""
    fewer, more = divmod(sessions, pool)
    if not more:
        cell = cells.at(way, ratio, fewer)
        return cell, pool * cell.tokens_per_s
    high = cells.at(way, ratio, fewer + 1)
    if not fewer:
        return high, more * high.tokens_per_s
    low = cells.at(way, ratio, fewer)
    tokens_per_s = (pool - more) * low.tokens_per_s + more * high.tokens_per_s
    return between(low, high, more * (fewer + 1) / sessions), tokens_per_s


def _latency(found: Sequence[tuple[float, Cell]]) -> Latency:
    """Over requests in all cells, none of which waited in line."""
    mean = sum(weight * cell.token_ms for weight, cell in found)
    token, first = [], []
    for weight, cell in found:
        moved = mean + sqrt(SMOOTHED) * (cell.token_ms - mean)
        token += [(moved + beyond, weight / QUANTILES) for beyond in cell.token]
        first += [(one, weight / QUANTILES) for one in cell.first]
    token.sort()
    first.sort()
    return Latency(_at(token, 0.5), _at(token, 0.95), _at(first, 0.5), _at(first, 0.95))


def _at(ordered: Sequence[tuple[float, float]], share: float) -> float:
    """The quantile of values with their weights."""
    seen = 0.0
    for value, weight in ordered:
        seen += weight
        if seen >= share:
            return value
    return ordered[-1][0]
