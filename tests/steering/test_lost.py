"""Workers that are lost, refuse, say nothing of a session, or never say that they opened it."""

from __future__ import annotations

import pytest

from orchestrator.steering import events, machine, openings
from orchestrator.steering.config import Phase
from orchestrator.steering.events import NeedWorker, Release, SetDraftedFor, Suspend, Tick
from orchestrator.steering.rounds import SuspendReason
from services.contract.frames import DraftName, WaitReason, draft_key
from services.contract.types import Role, VerifyMode
from tests.steering.made import Made

SILENT = "no message for 2.1 s (usual gap 0.3 s, this process stood still for 0.0 s)"
EXACT = [VerifyMode.GREEDY, VerifyMode.COUPLED]
DRAWN = [VerifyMode.STANDARD, VerifyMode.BLOCK]


@pytest.fixture
def made() -> Made:
    return Made()


@pytest.mark.parametrize("opened", [True, False])
def test_a_session_may_lose_any_number_of_verifiers(made: Made, opened: bool):
    now = 0.0
    for _ in range(50):
        made.attach(Role.VERIFIER, "v", now)
        if opened:
            made.started(Role.VERIFIER, "v", now)
        now += 5.0
        made.lose(now, why=SILENT)
        assert made.state.phase is Phase.RUNNING
    assert made.performed(Suspend) == []
    assert [message.opening for message in made.verifies()] == list(range(1, 51))


@pytest.mark.parametrize("opened", [True, False])
def test_after_each_loss_it_waits_anew_and_the_reason_says_what_was_lost(made: Made, opened):
    wait = made.state.config.limits.verifier_wait
    now = 0.0
    for _ in range(2):
        made.attach(Role.VERIFIER, "v", now)
        if opened:
            made.started(Role.VERIFIER, "v", now)
        now += 1.1 * wait
        made.lose(now, why=SILENT).feed(Tick(now + 0.99 * wait))
        assert made.state.phase is Phase.RUNNING
    made.feed(Tick(now + wait))
    assert made.performed(Suspend) == [
        Suspend(SuspendReason.NO_VERIFIER, f"2 were lost, the last one: {SILENT}")
    ]


def test_a_full_verifier_is_no_loss_and_does_not_make_the_wait_longer(made: Made):
    for at in range(60):
        made.attach(Role.VERIFIER, "v", at).refuse(at + 0.5, why="it says no", busy=True)
    assert made.state.phase is Phase.RUNNING
    made.feed(Tick(60.0))
    assert made.performed(Suspend) == [
        Suspend(SuspendReason.NO_VERIFIER, "the last one is full: it says no")
    ]


def test_losses_between_refusals_are_not_counted_with_them(made: Made):
    attempts = made.state.config.limits.worker_attempts
    for attempt in range(attempts):
        assert made.state.phase is Phase.RUNNING
        made.attach(Role.VERIFIER, "v", attempt).lose(attempt, why=SILENT)
        made.attach(Role.VERIFIER, "v", attempt).refuse(attempt, why="it says no")
    assert made.performed(Suspend) == [
        Suspend(SuspendReason.REFUSED, f"{attempts} times, at last: it says no")
    ]


def test_a_step_ends_the_count_of_refusals(made: Made):
    for attempt in range(2 * made.state.config.limits.worker_attempts):
        made.start(Role.VERIFIER, "v", attempt).take(5, at=attempt).refuse(attempt)
    assert made.state.phase is Phase.RUNNING


def test_drafters_are_looked_for_however_many_were_lost(made: Made):
    made.serve()
    now = 0.0
    for _ in range(12):
        made.lose(now, Role.DRAFTER, SILENT)
        assert made.state.drafter is None
        now += 10.0
        made.take(7, at=now).feed(Tick(now))
        assert made.performed(NeedWorker)[-1].role is Role.DRAFTER
        made.start(Role.DRAFTER, "d", now)
    assert made.state.wants_drafter
    assert made.state.verifier is not None


def test_a_drafter_that_fails_again_and_again_is_asked_for_no_more(made: Made):
    made.serve()
    for attempt in range(made.state.config.limits.worker_attempts):
        assert made.state.wants_drafter
        made.start(Role.DRAFTER, "d", attempt).refuse(attempt, Role.DRAFTER)
    assert not made.state.wants_drafter
    made.actions.clear()
    made.feed(Tick(9.0)).take(5, at=9.0)
    assert made.performed(NeedWorker) == []
    assert made.state.committed == (5,)


def test_a_drafter_is_asked_for_once_there_is_a_verifier_beside_which_it_may_be(made: Made):
    assert [need.role for need in made.performed(NeedWorker)] == [Role.VERIFIER]
    made.actions.clear()
    made.attach(Role.VERIFIER, "v")
    assert [need.role for need in made.performed(NeedWorker)] == [Role.DRAFTER]


# --- what is opened -------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(VerifyMode))
def test_a_new_verifier_is_opened_from_all_that_was_received_stored_or_not(mode):
    made = Made(mode).serve().take(1, 2).stored().take(3, 4).take(5).lose()
    made.start(Role.VERIFIER, "w")
    first, second = made.verifies()
    assert (first.opening, first.output) == (1, ())
    assert (second.opening, second.output) == (2, (1, 2, 3, 4, 5))
    assert made.state.stored == 2
    made.rows(made.row(6), worker="w")
    assert made.state.committed == (1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize("mode", DRAWN)
def test_where_drafts_are_judged_by_chance_a_new_verifier_takes_none_of_before(mode):
    made = Made(mode).serve().take(1).lose().start(Role.VERIFIER, "w")
    assert [message.opening for message in made.drafts()] == [1, 2]
    assert made.drafts()[-1].output == (1,)
    assert made.verifies()[-1].first_drafts == 2
    assert made.state.drafter is not None
    assert made.state.drafter.worker == "d"


@pytest.mark.parametrize("mode", DRAWN)
def test_nor_does_it_take_those_of_a_drafter_that_has_left(mode):
    made = Made(mode).serve().take(1).lose(role=Role.DRAFTER).lose()
    made.start(Role.VERIFIER, "w").start(Role.DRAFTER, "e")
    assert made.verifies()[-1].first_drafts == made.drafts()[-1].opening == 2


@pytest.mark.parametrize("mode", EXACT)
def test_elsewhere_it_takes_any(mode):
    made = Made(mode).serve().take(1).lose().start(Role.VERIFIER, "w")
    assert made.verifies()[-1].first_drafts == 0


@pytest.mark.parametrize("mode", VerifyMode)
def test_the_drafter_is_opened_anew_behind_the_next_verifier_and_not_before(mode):
    made = Made(mode).serve().take(1).lose()
    assert [message.opening for message in made.drafts()] == [1]
    made.actions.clear()
    made.attach(Role.VERIFIER, "w", 3.0)
    assert [start.role for start in made.performed(events.Start)] == [Role.VERIFIER, Role.DRAFTER]
    assert [(m.opening, m.output) for m in made.drafts()] == [(2, (1,))]
    assert made.performed(Release) == made.performed(NeedWorker) == []
    assert made.state.drafter is not None
    assert (made.state.drafter.worker, made.state.drafter.opened) == ("d", False)
    assert made.state.drafter.due == 3.0 + made.state.config.limits.opening_wait


def test_another_drafter_is_opened_from_all_that_was_received():
    made = Made().serve().take(1, 2).lose(role=Role.DRAFTER).start(Role.DRAFTER, "e")
    assert [(m.opening, m.output) for m in made.drafts()] == [(1, ()), (2, (1, 2))]


def test_what_a_verifier_drafts_by_itself_no_drafter_is_asked_for():
    made = Made(method="ngram,model").attach(Role.VERIFIER, "v", local=("ngram", "skip"))
    [told] = made.verifies()
    assert (told.method, told.drafted_for) == ("ngram", False)
    made.start(Role.DRAFTER, "d")
    assert made.drafts()[-1].method == "model"
    made = Made(method="ngram").attach(Role.VERIFIER, "v", local=("ngram",))
    [told] = made.verifies()
    assert (told.method, told.drafted_for) == ("ngram", False)
    assert [need.role for need in made.performed(NeedWorker)] == [Role.VERIFIER]
    assert not made.state.lacks_worker


def _told(made: Made) -> list[tuple[str, bool]]:
    """What verifiers were told of drafters, behind what their openings said."""
    return [(worker, there) for worker, there in made.performed(SetDraftedFor)]


def test_a_verifier_is_told_of_a_drafter_once_that_has_the_session():
    made = Made().start(Role.VERIFIER, "v").attach(Role.DRAFTER, "d")
    assert (made.verifies()[0].drafted_for, _told(made)) == (False, [])
    made.started(Role.DRAFTER, "d").started(Role.DRAFTER, "d")
    assert _told(made) == [("v", True)]


@pytest.mark.parametrize(
    "lose",
    [
        lambda made: made.lose(role=Role.DRAFTER),
        lambda made: made.refuse(role=Role.DRAFTER),
        lambda made: made.refuse(role=Role.DRAFTER, fatal=True),
    ],
    ids=["lost", "refused", "refused for good"],
)
def test_a_verifier_is_told_of_a_drafter_that_is_gone_and_of_the_next_one(lose):
    made = lose(Made().serve().take(1))
    assert _told(made) == [("v", True), ("v", False)]
    made.state = made.state._replace(drafters=made.state.drafters._replace(failures=0))
    made.start(Role.DRAFTER, "e")
    assert _told(made)[2:] == [("v", True)]


def test_of_a_drafter_that_never_had_the_session_nothing_is_told():
    made = Made().start(Role.VERIFIER, "v").attach(Role.DRAFTER, "d").refuse(role=Role.DRAFTER)
    assert _told(made) == []


@pytest.mark.parametrize("mode", VerifyMode)
def test_the_next_verifier_hears_of_the_drafter_when_that_is_open_again(mode):
    made = Made(mode).serve().take(1).lose().start(Role.VERIFIER, "w")
    assert (made.verifies()[-1].drafted_for, _told(made)) == (False, [("v", True)])
    made.started(Role.DRAFTER, "d")
    assert _told(made)[1:] == [("w", True)]


def test_a_drafter_that_the_next_verifier_needs_no_more_is_not_told_of():
    made = Made(method="ngram").serve().lose().start(Role.VERIFIER, "w", local=("ngram",))
    assert (made.verifies()[-1].drafted_for, _told(made)) == (False, [("v", True)])


def test_a_drafter_whose_methods_the_next_verifier_has_is_released():
    made = Made(method="ngram").serve().lose()
    assert made.state.drafter is not None
    made.start(Role.VERIFIER, "w", local=("ngram",))
    assert made.performed(Release)[-1] == Release(Role.DRAFTER, "d")
    assert not made.state.lacks_worker


@pytest.mark.parametrize("role", list(Role))
def test_who_started_what_nobody_asked_for_is_left(role: Role):
    made = Made().serve()
    worker = "v" if role is Role.VERIFIER else "d"
    made.feed(events.Started(0.0, role, worker, 1)).feed(events.Started(0.0, role, worker, 0))
    assert made.performed(Release) == []
    made.feed(events.Started(0.0, role, worker, 2))
    assert made.performed(Release) == [Release(role, worker)]


def test_the_last_opening_of_the_last_term_fits_its_key_and_no_other_does():
    last = DraftName(openings.MOST_OPENINGS, (1 << 32) - 1)
    assert draft_key(openings.MOST_TERMS, last) == (1 << 64) - 1
    for term, name in (
        (openings.MOST_TERMS + 1, last),
        (1, last._replace(opening=openings.MOST_OPENINGS + 1)),
    ):
        with pytest.raises(ValueError, match="below 65536"):
            draft_key(term, name)


def test_an_opening_that_would_not_fit_its_key_is_not_made(monkeypatch):
    monkeypatch.setattr(openings, "MOST_OPENINGS", 2)
    made = Made().serve().lose().start(Role.VERIFIER, "v").lose().attach(Role.VERIFIER, "v")
    [suspended] = made.performed(Suspend)
    assert suspended.reason is SuspendReason.REFUSED
    assert [message.opening for message in made.verifies()] == [1, 2]


# --- openings -------------------------------------------------------------------------


def test_a_verifier_that_never_says_it_opened_is_left_for_another(made: Made):
    limit = made.state.config.limits.opening_wait
    made.attach(Role.VERIFIER, "v")
    made.feed(Tick(limit - 0.01))
    assert made.state.verifier is not None
    assert machine.next_wake(made.state._replace(drafter=made.state.verifier), 0.0) == limit
    made.feed(Tick(limit))
    assert made.performed(Release)[-1] == Release(Role.VERIFIER, "v")
    assert made.performed(NeedWorker)[-1].role is Role.VERIFIER
    assert made.state.phase is Phase.RUNNING


def test_a_step_says_as_well_that_it_has_opened(made: Made):
    limit = made.state.config.limits.opening_wait
    made.attach(Role.VERIFIER, "v").take(5, at=limit - 1.0).feed(Tick(limit))
    assert made.state.verifier is not None
    assert made.state.verifier.opened


def test_a_long_prompt_is_given_the_time_that_its_worker_needs(made: Made):
    limit = made.state.config.limits.opening_wait
    made.attach(Role.VERIFIER, "v", ready_s=20.0).feed(Tick(limit + 79.9))
    assert made.state.verifier is not None
    made.feed(Tick(limit + 80.0))
    assert made.state.verifier is None


def test_each_opening_in_a_row_has_twice_the_time_and_none_counts_as_a_refusal(made: Made):
    now, limit = 0.0, made.state.config.limits.opening_wait
    for times in (1, 2, 4):
        made.attach(Role.VERIFIER, "v", now).feed(Tick(now + times * limit - 0.01))
        assert made.state.verifier is not None
        now += times * limit
        made.feed(Tick(now))
        assert made.state.verifier is None
    assert made.state.verifiers.failures == 0
    made.start(Role.VERIFIER, "v", now).lose(now, why=SILENT)
    made.attach(Role.VERIFIER, "v", now).feed(Tick(now + limit))
    assert made.state.verifier is None


def test_a_drafter_that_never_opens_is_left_and_the_verifier_goes_on_alone(made: Made):
    limit = made.state.config.limits.opening_wait
    made.serve().lose(role=Role.DRAFTER, why=SILENT).attach(Role.DRAFTER, "mute", 1.0)
    made.take(5, at=limit - 1).feed(Tick(limit - 1.0)).take(6, at=limit)
    made.feed(Tick(1.0 + limit))
    assert made.performed(Release)[-1] == Release(Role.DRAFTER, "mute")
    assert made.state.verifier is not None
    assert made.state.committed == (5, 6)


# --- standstills ----------------------------------------------------------------------


def test_nothing_is_late_because_this_process_stood_still(made: Made):
    made.serve()
    limits = made.state.config.limits
    made.feed(events.StoodStill(100.0, 100.0)).feed(Tick(99.9 + limits.verdict_wait))
    assert made.state.verifier is not None
    made.feed(Tick(100.0 + limits.verdict_wait))
    assert made.state.verifier is None
    made.attach(Role.VERIFIER, "v", 200.0)
    made.feed(events.StoodStill(300.0, 100.0)).feed(Tick(299.9 + limits.opening_wait))
    assert made.state.verifier is not None


def test_a_standstill_takes_nothing_from_the_waits_for_workers_and_readers(made: Made):
    limits = made.state.config.limits
    made.feed(events.Detached(0.0)).feed(events.StoodStill(1000.0, 1000.0))
    made.feed(Tick(999.9 + limits.detach_grace))
    assert made.state.phase is Phase.RUNNING
    made.feed(events.Reattached(1000.0)).feed(Tick(999.9 + limits.verifier_wait))
    assert made.state.phase is Phase.RUNNING
    made.feed(Tick(1000.0 + limits.verifier_wait))
    assert made.performed(Suspend)[-1].reason is SuspendReason.NO_VERIFIER


@pytest.mark.parametrize("reason", [SuspendReason.DETACHED, SuspendReason.DEADLINE])
def test_a_session_that_stops_in_time_keeps_what_was_decided(made: Made, reason):
    made.serve().take(5).take(6)
    if reason is SuspendReason.DETACHED:
        made.feed(events.Detached(0.0))
    made.feed(Tick(10.0 if reason is SuspendReason.DETACHED else 300.0))
    assert [commit.token_ids for (commit,) in made.performed(events.Persist)] == [(5,), (6,)]
    assert made.actions[-1] == Suspend(reason)
    assert made.performed(Release) == [Release(Role.VERIFIER, "v"), Release(Role.DRAFTER, "d")]


# --- given up -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("for_good", "costly", "reason"),
    [
        (True, False, SuspendReason.IMPOSSIBLE),
        (True, True, SuspendReason.COSTLY),
        (False, False, SuspendReason.REFUSED),
    ],
)
def test_what_fails_for_good_is_told_apart_from_a_refusal(for_good, costly, reason):
    made = Made().serve()
    how = {"fatal": True, "for_good": for_good, "costly": costly}
    made.lose(opening=0, **how)
    assert not made.performed(Suspend), "a late notice of an earlier opening"
    made.lose(opening=1, **how)
    assert made.performed(Suspend) == [Suspend(reason, "why")]


@pytest.mark.parametrize("costly", [False, True])
def test_what_nobody_can_go_on_with_ends_behind_its_last_token(costly):
    made = Made().serve().take(1, 2).take(3).refuse(fatal=True, for_good=True, costly=costly)
    made.stored()
    assert not made.performed(Suspend), "its last tokens are not stored yet"
    made.stored()
    assert [type(action) for action in made.actions[-2:]] == [events.Emit, Suspend]
    assert made.performed(Suspend)[0].reason.for_good
    emitted = [token for (commit,) in made.performed(events.Emit) for token in commit.token_ids]
    assert emitted == [1, 2, 3]


# --- silent ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(VerifyMode))
def test_a_verifier_that_is_silent_about_a_session_is_left_in_the_end(mode):
    made = Made(mode).serve().take(5, at=1.0)
    limit = 1.0 + made.state.config.limits.verdict_wait
    assert machine.next_wake(made.state, 1.0) == limit
    made.feed(Tick(limit - 0.01))
    assert made.state.verifier is not None
    made.feed(Tick(limit))
    assert made.state.verifier is None
    assert Release(Role.VERIFIER, "v") in made.performed(Release)
    assert made.performed(NeedWorker)[-1].role is Role.VERIFIER
    made.start(Role.VERIFIER, "w", limit).rows(made.row(6), worker="w")
    assert made.state.committed == (5, 6)


@pytest.mark.parametrize(
    ("reason", "excused"),
    [(reason, reason not in (WaitReason.CREDIT, WaitReason.ENDED)) for reason in WaitReason],
)
def test_a_reason_excuses_it_unless_we_know_better(reason, excused):
    made = Made().serve()
    limit = made.state.config.limits.verdict_wait
    made.feed(events.Waited(limit - 1.0, "other", WaitReason.KV))
    made.feed(events.Waited(limit - 1.0, "v", reason)).feed(Tick(limit))
    assert (made.state.verifier is not None) is excused
    made.feed(Tick(2 * limit - 1.0))
    assert made.state.verifier is None


def test_a_verifier_without_credit_is_not_hurried_until_it_has_some(monkeypatch):
    made = Made().serve()
    wait = made.state.config.limits.verdict_wait
    made.take(*range(1, made.state.limit + 1))
    made.feed(Tick(2 * wait))
    assert made.state.verifier is not None
    made.stored(at=2 * wait).feed(Tick(3 * wait - 0.01))
    assert made.state.verifier is not None
    made.feed(Tick(3 * wait))
    assert made.state.verifier is None
