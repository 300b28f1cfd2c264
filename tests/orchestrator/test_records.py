"""What sessions take in the store counts from their admission until the store forgets it."""

from __future__ import annotations

import pytest

from orchestrator.frontdoor.records import TENANT_SHARE, Records
from orchestrator.session.tenants import DEFAULT_TENANT, Tenant
from services.contract.errors import InvalidRequest, Overloaded

ACME, BETA = Tenant("acme"), Tenant("beta")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def records(clock: Clock | None = None) -> Records:
    return Records(1000, ended_s=60.0, idle_s=600.0, clock=clock or Clock())


def test_a_tenant_of_several_may_take_a_half_and_all_together_the_whole() -> None:
    made = records()
    made.enter(ACME, 4, 100)
    with pytest.raises(Overloaded) as own:
        made.enter(ACME, 2, 100)
    assert str(own.value) == (
        "the records of this tenant's sessions take 400 bytes in the session store, 200 more "
        f"would pass the limit of {1000 * TENANT_SHARE:.0f}"
    )
    assert own.value.retry_after
    made.enter(BETA, 5, 100)
    with pytest.raises(Overloaded, match="all sessions take 900 bytes"):
        made.enter(Tenant("gamma"), 1, 101)
    made.enter(DEFAULT_TENANT, 1, 100)
    assert made.size == 1000


def test_what_never_fits_is_said_to_be_wrong() -> None:
    made = records()
    with pytest.raises(InvalidRequest) as several:
        made.enter(ACME, 6, 100)
    with pytest.raises(InvalidRequest) as one:
        made.enter(ACME, 1, 501)
    assert (several.value.field, one.value.field) == ("n", "sampling.max_tokens")
    assert made.size == 0


def test_a_record_counts_by_what_it_came_to_until_it_is_forgotten() -> None:
    clock = Clock()
    made = records(clock)
    ended, idle, nothing = made.enter(ACME, 3, 100)
    ended.stay("a", 40, ended=True)
    idle.stay("b", 70, ended=False)
    nothing.give_back()
    ended.give_back()
    assert made.size == 110
    clock.now = 60.0
    assert made.size == 70
    clock.now = 600.0
    assert made.size == 0


def test_a_record_that_is_gone_on_with_counts_once() -> None:
    made = records()
    [place] = made.enter(ACME, 1, 100)
    for _ in range(3):
        place.stay("a", 70, ended=False)
        assert made.size == 70
        place = made.come_back(ACME, "a", 90)
        assert made.size == 90
    place.stay("a", 80, ended=True)
    assert made.size == 80


def test_what_is_stored_comes_back_whatever_the_limit_is() -> None:
    made = records()
    made.enter(ACME, 5, 100)
    made.come_back(ACME, "a", 5000)
    assert made.size == 5500
