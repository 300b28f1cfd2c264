"""Tokens in flight are counted before any work; speculation shrinks before anyone is refused."""

from __future__ import annotations

import pytest

from orchestrator.frontdoor.admission import WORK_BURST, Admission, Work
from orchestrator.frontdoor.grpc.call_limits import LATE_SECONDS, Refusals
from orchestrator.session.tenants import Tenant, TenantLimits
from services.contract.errors import InvalidRequest, Overloaded


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def admission(
    tokens: int | None = 1000, sessions: int = 100, memory: int = 0, clock: Clock | None = None
) -> Admission:
    return Admission(sessions, tokens, lambda: memory, clock or Clock())


def test_sessions_come_in_up_to_the_limit_and_are_refused_beyond():
    door = admission(1000)
    door.enter(300, 300)
    door.enter(100, 300)
    with pytest.raises(Overloaded) as refused:
        door.enter(1, 1)
    assert "1000 tokens are in flight" in str(refused.value)
    assert refused.value.retry_after > 0
    assert (door.sessions, door.tokens) == (2, 1000)


def test_several_sessions_come_in_together_or_not_at_all():
    door = admission(1000, sessions=5)
    places = door.enter_together(3, 100, 100, ACME_OF_FOUR)
    assert (door.sessions, door.tokens) == (3, 600)
    with pytest.raises(Overloaded, match="3 sessions of this tenant are open, 2 more would pass"):
        door.enter_together(2, 1, 1, ACME_OF_FOUR)
    with pytest.raises(Overloaded, match="600 tokens are in flight, 500 more"):
        door.enter_together(2, 150, 100, OTHER)
    for count, size in ((5, 1), (4, 200)):
        with pytest.raises(InvalidRequest) as refused:
            door.enter_together(count, size, 100, ACME_OF_FOUR)
        assert (refused.value.field, refused.value.value) == ("n", count)
    assert (door.sessions, door.tokens) == (3, 600)
    places[1].leave()
    assert (door.sessions, door.tokens) == (2, 400)


def test_a_place_is_given_back_once_however_often_its_session_ends():
    door = admission(1000)
    door.enter(100, 100)
    with door.enter(100, 100) as place:
        place.keep()
    place.leave()
    place.leave()
    assert (door.sessions, door.tokens) == (1, 200)


def test_a_place_that_nobody_kept_is_given_back_whatever_went_wrong():
    door = admission(1000)
    with pytest.raises(RuntimeError), door.enter(100, 100):
        raise RuntimeError
    assert (door.sessions, door.tokens) == (0, 0)


def test_a_session_that_never_fits_is_a_bad_request_and_not_told_to_come_again():
    with pytest.raises(InvalidRequest) as refused:
        admission(1000).enter(600, 500)
    assert (refused.value.field, refused.value.value) == ("sampling.max_tokens", 500)


def test_without_a_limit_of_its_own_as_much_may_wait_as_the_verifiers_hold():
    door = admission(None, memory=500)
    door.enter(500, 400)
    with pytest.raises(Overloaded):
        door.enter(50, 51)
    door.enter(50, 50)


def test_while_no_verifier_has_told_its_memory_nobody_is_refused():
    door = admission(None, memory=0)
    door.enter(10**9, 1)
    assert door.speculation == 1


def test_speculation_shrinks_step_by_step_and_is_gone_before_anyone_is_refused():
    door = admission(1000)
    shares = []
    for _ in range(100):
        shares.append(door.speculation)
        door.enter(5, 5)
    assert shares == sorted(shares, reverse=True)
    assert set(shares) == {1.0, 0.75, 0.5, 0.25, 0.0}
    assert shares.count(1.0) == 76
    with pytest.raises(Overloaded):
        door.enter(1, 0)


def test_speculation_comes_back_as_sessions_leave():
    door = admission(1000)
    place = door.enter(500, 490)
    assert door.speculation == 0
    place.leave()
    assert door.speculation == 1


def test_a_session_that_comes_back_may_pass_the_common_limits_by_an_eighth_and_no_more():
    door = admission(1000, sessions=8)
    door.enter(500, 500)
    door.come_back(125)
    with pytest.raises(Overloaded):
        door.come_back(1)
    assert (door.sessions, door.tokens, door.speculation) == (2, 1125, 0)
    crowd = admission(None, sessions=8)
    for _ in range(9):
        crowd.come_back(1)
    with pytest.raises(Overloaded):
        crowd.come_back(1)


def test_a_session_that_comes_back_to_an_empty_place_always_finds_room():
    small = Tenant("small", TenantLimits(max_tokens_in_flight=10))
    door = admission(1000)
    door.come_back(5000, small).leave()
    assert (door.sessions, door.tokens) == (0, 0)


ACME = Tenant("acme", TenantLimits(max_sessions=2, max_tokens_in_flight=100))
OTHER = Tenant("other")
ACME_OF_FOUR = Tenant("acme", TenantLimits(max_sessions=4))


def test_a_tenant_at_its_limit_of_sessions_is_refused_and_nobody_else():
    door = admission(1000)
    places = [door.enter(5, 5, ACME) for _ in range(2)]
    with pytest.raises(Overloaded, match="2 sessions of this tenant are open") as refused:
        door.enter(5, 5, ACME)
    assert refused.value.retry_after > 0
    with pytest.raises(Overloaded):
        door.come_back(10, ACME)
    door.enter(5, 5, OTHER)
    places[0].leave()
    door.enter(5, 5, ACME)
    assert (door.sessions_of("acme"), door.sessions_of("other"), door.sessions) == (2, 1, 3)


def test_a_tenant_at_its_limit_of_tokens_is_refused_and_nobody_else():
    door = admission(1000)
    door.enter(50, 40, ACME)
    with pytest.raises(Overloaded, match="90 tokens of this tenant are in flight"):
        door.enter(5, 6, ACME)
    door.enter(400, 400, OTHER)
    with pytest.raises(InvalidRequest) as refused:
        door.enter(50, 51, ACME)
    assert refused.value.allowed == "at most 100 together with the 50 tokens of the prompt"


def test_who_is_refused_by_the_common_limit_has_taken_nothing_of_its_own():
    door = admission(100)
    door.enter(50, 40, OTHER)
    with pytest.raises(Overloaded):
        door.enter(10, 10, ACME)
    assert (door.sessions_of("acme"), door.tokens) == (0, 90)


def test_the_retry_delay_is_what_the_missing_tokens_took_to_leave_lately():
    clock = Clock()
    door = admission(1000, clock=clock)
    for _ in range(5):
        place = door.enter(50, 50)
        clock.now += 1.0
        place.leave()
    door.enter(500, 500)
    with pytest.raises(Overloaded) as refused:
        door.enter(100, 0)
    assert refused.value.retry_after == pytest.approx(2.0)
    clock.now += 100
    with pytest.raises(Overloaded) as refused:
        door.enter(100, 0)
    assert refused.value.retry_after == 1.0


def test_a_tenant_whose_requests_cost_more_than_its_share_pays_that_off_before_the_next():
    clock = Clock()
    work = Work(0.25, clock)
    work.spend("acme", WORK_BURST)
    assert work.owed("acme") == 0.0
    work.spend("acme", 1.0)
    assert work.owed("acme") == pytest.approx(4.0)
    assert work.owed("beta") == 0.0
    clock.now = 4.0
    assert work.owed("acme") == 0.0


def test_a_tenant_that_costs_less_than_its_share_never_waits():
    clock = Clock()
    work = Work(0.25, clock)
    for _ in range(1000):
        work.spend("acme", 0.2)
        clock.now += 1.0
        assert work.owed("acme") == 0.0


def test_refusals_that_come_too_often_are_told_late_and_at_once_again_after_a_rest():
    clock = Clock()
    refusals = Refusals(clock)
    clock.now = 100.0
    pauses = [refusals.pause("acme") for _ in range(1000)]
    assert pauses[:10] == [0.0] * 10
    assert set(pauses[11:]) == {LATE_SECONDS}
    assert refusals.pause("beta") == 0.0
    clock.now += LATE_SECONDS + 1.0
    assert refusals.pause("acme") == 0.0


def test_logprobs_count_by_the_memory_that_they_may_take():
    door = Admission(100, 10_000, lambda: 0, Clock(), max_memory=1000)
    with pytest.raises(InvalidRequest) as never:
        door.enter(5, 5, memory=1001)
    assert never.value.field == "sampling.logprobs"
    place = door.enter(5, 5, memory=600)
    with pytest.raises(Overloaded) as refused:
        door.enter(5, 5, memory=401)
    assert "logprobs" in str(refused.value)
    assert refused.value.retry_after > 0
    door.enter(5, 5)
    # As with tokens, what was begun may pass the limit by an eighth.
    door.come_back(10, memory=525)
    with pytest.raises(Overloaded):
        door.come_back(10, memory=1)
    place.leave()
    door.enter(5, 5, memory=475)


def shared(memory: int, room: list[float]) -> Admission:
    """The door of one of several orchestrators; `room` is what the others leave."""
    return Admission(100, None, lambda: memory, Clock(), room=lambda: room[0])


def test_what_other_orchestrators_hold_is_not_given_out_again():
    room = [2000.0]
    door = shared(1000, room)
    door.enter(300, 300)
    room[0] = 1000.0
    with pytest.raises(Overloaded, match="limit of 1000"):
        door.enter(300, 300)
    door.enter(100, 300)


def test_speculation_shrinks_by_what_others_leave():
    room = [2000.0]
    door = shared(1000, room)
    door.enter(500, 500)
    assert door.speculation == 1
    room[0] = 1100.0
    assert 0 < door.speculation < 1


def test_a_session_that_fits_once_others_have_ended_is_put_off_and_not_refused_for_good():
    door = shared(1000, [10.0])
    with pytest.raises(Overloaded):
        door.enter(300, 300)
    with pytest.raises(InvalidRequest):
        door.enter(3000, 300)
