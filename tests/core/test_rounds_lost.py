"""Workers that are lost, refuse, say nothing of a block, or never say that they opened it."""

from dataclasses import replace

import pytest

from orchestrator.core import events, rounds
from orchestrator.core.events import (
    NeedWorker,
    Release,
    Suspend,
    Tick,
    WorkerLost,
)
from orchestrator.steering.config import Phase
from orchestrator.steering.rounds import SuspendReason
from services.contract.types import Role, VerifyMode
from tests.core.machine import Machine

SILENT = "no message for 2.1 s (usual gap 0.3 s, this process stood still for 0.0 s)"


@pytest.fixture
def made() -> Machine:
    return Machine(VerifyMode.GREEDY)


def _limits(made: Machine):
    return made.state.config.limits


def _refused(made: Machine, at: float, role: Role = Role.VERIFIER, **how: bool) -> events.Event:
    return events.WorkerLost(at, role, "v", "it says no", epoch=made.state.epoch, **how)


def _attach(made: Machine, at: float, worker: str = "v", ready_s: float = 0.0) -> None:
    made.feed(events.WorkerAttached(at, Role.VERIFIER, worker, ready_s))


@pytest.mark.parametrize("opened", [True, False])
def test_a_session_may_lose_any_number_of_verifiers(made: Machine, opened: bool):
    now = 0.0
    for _ in range(50):
        _attach(made, now)
        if opened:
            made.feed(events.WorkerOpened(now, Role.VERIFIER, "v", made.state.epoch))
        now += 5.0
        made.feed(events.WorkerLost(now, Role.VERIFIER, "v", SILENT))
        assert made.state.phase is Phase.RUNNING
    assert made.performed(events.Suspend) == []


@pytest.mark.parametrize("opened", [True, False])
def test_after_each_loss_it_waits_anew_and_the_reason_says_what_was_lost(made, opened):
    wait = _limits(made).verifier_wait
    now = 0.0
    for _ in range(2):
        _attach(made, now)
        if opened:
            made.feed(events.WorkerOpened(now, Role.VERIFIER, "v", made.state.epoch))
        now += 1.1 * wait
        made.feed(events.WorkerLost(now, Role.VERIFIER, "v", SILENT)).feed(
            events.Tick(now + 0.99 * wait)
        )
        assert made.state.phase is Phase.RUNNING
    made.feed(events.Tick(now + wait))
    [suspended] = made.performed(events.Suspend)
    assert suspended.reason is SuspendReason.NO_VERIFIER
    assert suspended.detail == f"2 were lost, the last one: {SILENT}"


def test_a_full_verifier_is_no_loss_and_does_not_make_the_wait_longer(made: Machine):
    for at in range(60):
        _attach(made, at)
        made.feed(_refused(made, at + 0.5, busy=True))
    assert made.state.phase is Phase.RUNNING
    made.feed(events.Tick(60.0))
    [suspended] = made.performed(events.Suspend)
    assert suspended.reason is SuspendReason.NO_VERIFIER
    assert suspended.detail == "the last one is full: it says no"


def test_losses_between_refusals_are_not_counted_with_them(made: Machine):
    attempts = _limits(made).worker_attempts
    for attempt in range(attempts):
        assert made.state.phase is Phase.RUNNING
        _attach(made, attempt)
        made.feed(events.WorkerLost(attempt, Role.VERIFIER, "v", SILENT))
        _attach(made, attempt)
        made.feed(_refused(made, attempt))
    [suspended] = made.performed(events.Suspend)
    assert suspended.reason is SuspendReason.REFUSED
    assert suspended.detail == f"{attempts} times, at last: it says no"


def test_drafters_are_looked_for_however_many_were_lost(made: Machine):
    made.serve()
    now = 0.0
    for _ in range(12):
        made.feed(events.WorkerLost(now, Role.DRAFTER, "d", SILENT))
        assert made.state.drafter is None
        now += 10.0
        made.answer(7, accepted=0, whole=True, at=now)
        made.feed(events.Persisted(now, made.state.next_round)).feed(events.Tick(now))
        assert made.performed(events.NeedWorker)[-1].role is Role.DRAFTER
        made.feed(events.WorkerAttached(now, Role.DRAFTER, "d"))
        made.feed(events.WorkerOpened(now, Role.DRAFTER, "d", made.state.epoch))
    assert made.state.wants_drafter


def test_a_drafter_is_asked_for_once_there_is_a_verifier_beside_which_it_may_be(made: Machine):
    made.feed(events.WorkerLost(0.0, Role.DRAFTER, "d", SILENT))
    assert [need.role for need in made.performed(events.NeedWorker)] == [Role.VERIFIER] * 2
    made.actions.clear()
    made.feed(events.WorkerAttached(0.0, Role.VERIFIER, "v"))
    assert [need.role for need in made.performed(events.NeedWorker)] == [Role.DRAFTER]


# --- openings ------------------------------------------------------------------------


def test_a_verifier_that_never_says_it_opened_is_left_for_another(made: Machine):
    limit = _limits(made).opening_wait
    _attach(made, 0.0)
    assert rounds.next_wake(made.state, 0.0) == limit
    made.feed(events.Tick(limit - 0.01))
    assert made.state.verifier is not None
    made.feed(events.Tick(limit))
    assert made.performed(events.Release)[-1] == events.Release(Role.VERIFIER, "v")
    assert made.performed(events.NeedWorker)[-1].role is Role.VERIFIER
    assert made.state.phase is Phase.RUNNING
    _attach(made, limit, "other")
    made.feed(events.WorkerOpened(limit + 1, Role.VERIFIER, "other", made.state.epoch)).draft(1, 2)
    assert made.performed(events.SendVerify)[-1].worker == "other"


def test_a_long_prompt_is_given_the_time_that_its_worker_needs(made: Machine):
    limit = _limits(made).opening_wait
    _attach(made, 0.0, ready_s=20.0)
    made.feed(events.Tick(limit + 79.9))
    assert made.state.verifier is not None
    made.feed(events.Tick(limit + 80.0))
    assert made.state.verifier is None


def test_each_opening_in_a_row_has_twice_the_time_and_none_counts_as_a_refusal(made: Machine):
    now, limit = 0.0, _limits(made).opening_wait
    for times in (1, 2, 4):
        _attach(made, now)
        made.feed(events.Tick(now + times * limit - 0.01))
        assert made.state.verifier is not None
        now += times * limit
        made.feed(events.Tick(now))
        assert made.state.verifier is None
    assert made.state.verifier_failures == 0
    _attach(made, now)
    made.feed(events.WorkerOpened(now, Role.VERIFIER, "v", made.state.epoch))
    made.feed(events.WorkerLost(now, Role.VERIFIER, "v", SILENT))
    _attach(made, now)
    made.feed(events.Tick(now + limit))
    assert made.state.verifier is None


def test_a_drafter_that_never_opens_is_left_and_the_verifier_goes_on_alone(made: Machine):
    limit = _limits(made).opening_wait
    made.serve().feed(events.WorkerLost(0.0, Role.DRAFTER, "d", SILENT))
    made.feed(events.WorkerAttached(1.0, Role.DRAFTER, "mute")).answer(5, accepted=0, whole=True)
    assert (made.state.committed, made.sent()[-1].tree.token_ids) == ((5,), ())
    made.feed(events.Tick(limit - 1.0)).answer(6, accepted=0, whole=True).feed(
        events.Tick(1.0 + limit)
    )
    assert made.performed(events.Release)[-1] == events.Release(Role.DRAFTER, "mute")
    assert made.state.verifier is not None


def test_an_open_session_is_never_overdue(made: Machine):
    made.serve().feed(events.Tick(2 * _limits(made).opening_wait))
    assert made.state.verifier is not None
    assert made.state.drafter is not None


# --- standstills ---------------------------------------------------------------------


def test_no_verdict_and_no_opening_is_late_because_this_process_stood_still(made: Machine):
    made.serve().draft(1, 2)
    limits = _limits(made)
    made.feed(events.StoodStill(100.0, 100.0)).feed(events.Tick(99.9 + limits.verdict_wait))
    assert made.state.verifier is not None
    made.feed(events.Tick(100.0 + limits.verdict_wait))
    assert made.state.verifier is None
    _attach(made, 200.0)
    made.feed(events.StoodStill(300.0, 100.0)).feed(events.Tick(299.9 + limits.opening_wait))
    assert made.state.verifier is not None


def test_a_standstill_takes_nothing_from_the_waits_for_workers_and_readers(made: Machine):
    limits = _limits(made)
    made.feed(events.StoodStill(1000.0, 1000.0)).feed(events.Tick(999.9 + limits.verifier_wait))
    assert made.state.phase is Phase.RUNNING
    made.feed(events.Tick(1000.0 + limits.verifier_wait))
    assert made.performed(events.Suspend)[-1].reason is SuspendReason.NO_VERIFIER


# --- given up -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("for_good", "costly", "reason"),
    [
        (True, False, SuspendReason.IMPOSSIBLE),
        (True, True, SuspendReason.COSTLY),
        (False, False, SuspendReason.REFUSED),
    ],
)
def test_what_fails_for_good_is_told_apart_from_a_refusal(for_good, costly, reason):
    made = Machine(VerifyMode.GREEDY).serve()
    assert made.state.verifier is not None
    worker, epoch = made.state.verifier.worker, made.state.verifier.epoch
    lost = WorkerLost(
        *(1.0, Role.VERIFIER, worker, "why"),
        fatal=True,
        epoch=epoch,
        for_good=for_good,
        costly=costly,
    )
    made.feed(replace(lost, epoch=epoch - 1))
    assert not made.performed(Suspend), "a late notice of an earlier open"
    made.feed(lost)
    assert made.performed(Suspend) == [Suspend(reason, "why")]


def test_what_nobody_can_go_on_with_ends_behind_its_last_token():
    made = Machine(VerifyMode.GREEDY).serve().draft(1, 2).answer(1, 2, accepted=2, whole=True)
    assert made.state.verifier is not None
    worker, epoch = made.state.verifier.worker, made.state.verifier.epoch
    lost = WorkerLost(1.0, Role.VERIFIER, worker, "why", fatal=True, epoch=epoch, for_good=True)
    made.feed(lost)
    assert made.state.in_flight == ()
    assert not made.performed(Suspend), "its last tokens are not stored yet"
    made.feed(events.Persisted(1.0, made.state.unpersisted[-1].record.round))
    assert [type(action) for action in made.actions[-2:]] == [events.Emit, Suspend]
    assert made.performed(Suspend) == [Suspend(SuspendReason.IMPOSSIBLE, "why")]


# --- silent -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [VerifyMode.GREEDY, VerifyMode.STANDARD])
def test_a_block_without_a_verdict_is_taken_elsewhere_in_the_end(mode):
    made = Machine(mode).serve().draft(1, 2)
    limit = made.state.config.limits.verdict_wait
    assert rounds.next_wake(made.state, 0.0) == limit
    made.feed(Tick(limit - 0.01))
    assert made.state.verifier is not None
    before = made.state.epoch
    made.feed(Tick(limit))
    assert made.state.verifier is None
    assert made.state.in_flight == ()
    assert made.state.epoch > before
    assert made.performed(Release)[-1].role is Role.VERIFIER
    assert made.performed(NeedWorker)[-1].role is Role.VERIFIER
    made.serve().attach(Role.DRAFTER, "d").draft(1, 2).answer(1, 5, accepted=1, whole=False)
    assert made.state.committed == (1, 5)


def test_a_verifier_that_owes_nothing_is_not_hurried():
    made = Machine(VerifyMode.GREEDY).serve().draft(1, 2)
    made.answer(1, 2, 3, accepted=2, whole=True)
    assert made.state.in_flight == ()
    made.feed(Tick(2.0 * made.state.config.limits.verdict_wait))
    assert made.state.verifier is not None
