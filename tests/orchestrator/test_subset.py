"""Each orchestrator takes a part of the workers; all parts together cover each about as often."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.workers.subset import Member, subset


def members(kind: str, count: int, zones: int = 1) -> list[Member]:
    return [Member(f"{kind}-{number}", f"z{number % zones}") for number in range(count)]


def parts(orchestrators, workers, size) -> dict[str, set[str]]:
    return {me.name: subset(me, orchestrators, workers, size) for me in orchestrators}


@given(st.integers(1, 40), st.integers(1, 120), st.integers(1, 50), st.integers(1, 4))
def test_every_worker_is_covered_and_no_part_is_too_small(callers, called, size, zones):
    orchestrators, workers = members("o", callers, zones), members("w", called, zones)
    taken = parts(orchestrators, workers, size)
    assert set.union(*taken.values()) == {worker.name for worker in workers}
    assert all(len(part) >= min(size, called) for part in taken.values())


@given(st.integers(1, 60), st.integers(1, 200), st.integers(1, 64))
def test_workers_are_covered_about_equally_often(callers, called, size):
    orchestrators, workers = members("o", callers), members("w", called)
    taken = parts(orchestrators, workers, size)
    counts = Counter({worker.name: 0 for worker in workers})
    counts.update(name for part in taken.values() for name in part)
    assert max(counts.values()) - min(counts.values()) <= 2


@given(st.integers(2, 60), st.integers(2, 200), st.integers(1, 64))
def test_a_worker_that_comes_changes_two_links_of_an_orchestrator_at_most(callers, called, size):
    orchestrators, workers = members("o", callers), members("w", called)
    before = parts(orchestrators, workers, size)
    after = parts(orchestrators, [*workers, Member("new", "z0")], size)
    for name, part in before.items():
        if len(part) < called:
            assert len(part - after[name]) <= 2


@given(st.integers(2, 60), st.integers(2, 200), st.integers(1, 64))
def test_an_orchestrator_that_comes_moves_the_others_by_its_share(callers, called, size):
    orchestrators, workers = members("o", callers), members("w", called)
    before = parts(orchestrators, workers, size)
    after = parts([*orchestrators, Member("new", "z0")], workers, size)
    narrower = -(-called // callers) - -(-called // (callers + 1))
    for name, part in before.items():
        assert len(part - after[name]) <= called / (callers + 1) + 2 + narrower


def test_the_order_in_which_others_are_known_does_not_matter():
    orchestrators, workers, me = members("o", 7, 2), members("w", 60, 2), Member("o-3", "z1")
    expected = subset(me, orchestrators, workers, 9)
    assert subset(me, orchestrators[::-1], workers[::-1], 9) == expected
    others = [one for one in orchestrators if one != me]
    assert subset(me, others, workers, 9) == expected


def test_workers_of_the_own_zone_are_preferred():
    orchestrators, workers = members("o", 6, 3), members("w", 60, 3)
    zones = {worker.name: worker.zone for worker in workers}
    for me in orchestrators:
        assert {zones[name] for name in subset(me, orchestrators, workers, 12)} == {me.zone}


def test_a_zone_with_too_few_workers_takes_the_rest_from_others():
    orchestrators, workers = members("o", 6, 3), members("w", 30, 3)
    zones = {worker.name: worker.zone for worker in workers}
    taken = subset(orchestrators[0], orchestrators, workers, 15)
    assert Counter(zones[name] for name in taken)["z0"] == 10
    assert len(taken) == 15


@pytest.mark.parametrize(
    ("orchestrators", "workers"),
    [
        ([Member("o", "a")], [*members("w", 40), Member("x", "elsewhere")]),
        (
            [*members("o", 9), Member("alone", "far")],
            [*members("w", 5), *[Member(f"far-{number}", "far") for number in range(35)]],
        ),
    ],
    ids=["a zone without an orchestrator", "a zone with most of the workers and few callers"],
)
def test_lopsided_zones_do_not_count(orchestrators, workers):
    taken = parts(orchestrators, workers, 4)
    nowhere = [one._replace(zone="") for one in orchestrators]
    assert taken == parts(nowhere, [worker._replace(zone="") for worker in workers], 4)
    assert set.union(*taken.values()) == {worker.name for worker in workers}
