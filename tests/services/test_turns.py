"""Priorities decide within a tenant, for a bounded time, and gain nothing over others."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from services.scheduling.turns import MOST, SECONDS, Claim, exchange, in_turn


class One(NamedTuple):
    name: int
    tenant: str
    priority: int
    since: float


def claim(one: One) -> Claim:
    return Claim(one.tenant, one.priority, one.since)


@st.composite
def lines(draw):
    """Sessions in the order in which they came."""
    times = sorted(draw(st.lists(st.floats(0, 100), max_size=12)))
    tenants, priorities = st.sampled_from("abc"), st.integers(-MOST, MOST)
    return [One(i, draw(tenants), draw(priorities), at) for i, at in enumerate(times)]


@given(lines())
def test_every_tenant_has_the_places_that_it_has_without_priorities(line) -> None:
    ordered = in_turn(line, claim)
    assert [one.tenant for one in ordered] == [one.tenant for one in line]
    assert sorted(ordered) == line


@given(lines())
def test_nobody_is_overtaken_by_who_comes_later_than_priority_is_worth(line) -> None:
    ordered = in_turn(line, claim)
    for place, late in enumerate(ordered):
        for early in ordered[:place]:
            if early.tenant == late.tenant:
                ahead = SECONDS * (late.priority - early.priority)
                assert early.since <= late.since + ahead
                assert ahead >= 0 or early.since < late.since


@given(lines())
def test_equal_priorities_change_nothing(line) -> None:
    for priority in (0, 7):
        equal = [one._replace(priority=priority) for one in line]
        assert in_turn(equal, claim) == equal


def test_who_was_overtaken_has_the_later_place_for_good() -> None:
    class Session:
        def __init__(self, name: str, tenant: str, priority: int, place: int) -> None:
            self.name, self.tenant, self.priority, self.place = name, tenant, priority, place

    waiting = [Session("low", "a", 9, 1), Session("other", "b", 0, 2), Session("high", "a", 0, 3)]
    served = []
    for place in (4, 5):
        waiting.sort(key=lambda one: one.place)
        ordered = exchange(waiting, lambda one: Claim(one.tenant, one.priority, 0.0), "place")
        served.append(ordered[0].name)
        waiting.remove(ordered[0])
        waiting.append(Session(f"high {place}", "a", 0, place))
    assert served == ["high", "other"]


def test_the_last_of_all_is_served_however_many_sooner_ones_come() -> None:
    """One is served each tenth of a second, and one of the soonest comes each tenth."""
    low, step = One(-1, "a", MOST, 0.0), 0.1
    waiting, now = [low], 0.0
    for number in range(10_000):
        now = step * number
        waiting.append(One(number, "a", -MOST, now))
        served = in_turn(waiting, claim)[0]
        if served is low:
            break
        waiting.remove(served)
    assert 2 * MOST * SECONDS - 1 < now <= 2 * MOST * SECONDS + step
