"""Links beyond a subset stand while a session needs them; and what was placed since a report."""

from dataclasses import dataclass, field

from orchestrator.workers.placed import Placed
from orchestrator.workers.visits import AGAIN_AFTER, AT_ONCE, HOME_WAIT, STAY, Visits
from services.contract.types import Role

VERIFIER = Role.VERIFIER
BEYOND = {f"v{number}": f"h:{number}" for number in range(6)}


@dataclass
class OneLink:
    address: str = "h:0"
    role: Role = VERIFIER
    assigned: set[str] = field(default_factory=set)


def visits(orchestrator: str = "o1") -> Visits:
    made = Visits(orchestrator)
    made.know(VERIFIER, BEYOND)
    return made


def test_workers_beyond_the_subset_are_known_by_role():
    made = visits()
    assert made.address_of(VERIFIER, "v3") == "h:3"
    assert made.address_of(Role.DRAFTER, "v3") == made.address_of(VERIFIER, "v9") == ""
    assert made.away(VERIFIER, "h:3")
    assert not made.away(VERIFIER, "h:9")


def test_a_few_more_are_tried_at_a_time_until_there_are_none():
    made, linked, now = visits(), list[str](), 0.0
    while more := made.more(VERIFIER, linked, now):
        assert len(more) == AT_ONCE
        assert made.more(VERIFIER, linked, now + AGAIN_AFTER / 2) == []
        linked += more
        now += AGAIN_AFTER
    assert sorted(linked) == sorted(BEYOND.values())


def test_orchestrators_try_others_in_orders_of_their_own():
    assert len({tuple(visits(f"o{n}").more(VERIFIER, (), 0.0)) for n in range(20)}) > 3


def test_a_visit_lasts_while_it_has_a_session_and_a_little_longer():
    made, link = visits(), OneLink()
    assert made.keep(link, 0.0)
    link.assigned.add("s")
    assert made.keep(link, 9 * STAY)
    link.assigned.clear()
    assert made.keep(link, 9.9 * STAY)
    assert not made.keep(link, 10 * STAY)


def test_a_session_waits_a_moment_for_the_link_to_its_verifier():
    made = visits()
    assert made.waits(VERIFIER, "h:0", 5.0)
    assert made.waits(VERIFIER, "h:0", 5.0 + HOME_WAIT / 2)
    assert not made.waits(VERIFIER, "h:0", 5.0 + HOME_WAIT)


def test_what_was_placed_counts_as_fresh_until_the_worker_tells_its_load():
    placed = Placed()
    placed.add("a", 100)
    placed.add("b", 50)
    assert (placed.fresh, placed.fresh_tokens, placed.told) == (2, 150, 0)
    placed.reported()
    placed.add("c", 7)
    assert (placed.fresh, placed.fresh_tokens, placed.told) == (1, 7, 150)
    placed.drop("a")
    placed.drop("c")
    placed.drop("c")
    assert (placed.fresh, placed.fresh_tokens, placed.tokens) == (0, 0, 50)


def test_a_session_that_is_opened_again_counts_once():
    placed = Placed()
    placed.add("a", 100)
    placed.reported()
    placed.add("a", 120)
    assert (placed.fresh, placed.fresh_tokens, placed.tokens) == (1, 120, 120)
