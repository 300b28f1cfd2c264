"""Plain blocks leave before they are due: with the opening, and behind one another."""

from dataclasses import replace

import pytest

from orchestrator.core import events, rounds
from orchestrator.core.pacing import Marginal
from services.contract.types import Role, Verdict, VerifyMode
from tests.core.machine import Machine

GREEDY, STANDARD = VerifyMode.GREEDY, VerifyMode.STANDARD
MODES = pytest.mark.parametrize("mode", [GREEDY, STANDARD], ids=lambda mode: mode.name)


def opening(mode: VerifyMode = GREEDY, **more) -> Machine:
    """A session whose verifier is opening it."""
    return Machine(mode, plain_ahead=True, **more).feed(
        events.WorkerAttached(0.0, Role.VERIFIER, "v")
    )


def answer(made: Machine, token: int, at: float, verify_ms: float = 0.0, *, stored: bool = True):
    """The verdict on a block without drafts; what it brings is stored at once."""
    number = made.state.in_flight[0].round
    made.answer(token, accepted=0, whole=True, at=at, verify_ms=verify_ms)
    if stored:
        made.feed(events.Persisted(at, number))


@MODES
def test_the_first_block_leaves_with_the_opening_and_holds_no_draft(mode):
    made = opening(mode)
    kinds = [type(action) for action in made.actions if not hasattr(action, "role")]
    assert kinds.index(events.SendVerify) > kinds.index(events.OpenOnWorker)
    [block] = made.sent()
    assert (block.round, block.base_len, len(block.tree), block.want_bonus) == (1, 0, 0, True)
    made.draft(1, 2).feed(events.WorkerOpened(2.0, Role.VERIFIER, "v", made.state.epoch))
    assert len(made.sent()) == 1


@MODES
def test_its_verdict_is_the_first_token_and_what_was_drafted_behind_it_goes_on(mode):
    made = opening(mode).draft(1, 2)
    made.feed(events.WorkerOpened(2.0, Role.VERIFIER, "v", made.state.epoch))
    answer(made, 1, at=2.0)
    assert (made.state.committed, made.state.speculated) == ((1,), (2,))


def test_it_is_a_round_of_the_step_that_verified_it_and_pacing_learns_nothing_of_it():
    made = opening()
    before = made.state.policy
    made.feed(events.WorkerOpened(5.0, Role.VERIFIER, "v", made.state.epoch))
    answer(made, 1, at=5.0, verify_ms=40.0)
    [persist] = made.performed(events.Persist)
    record = persist.commit.record
    assert (record.started_at, record.ended_at) == (pytest.approx(4.96), 5.0)
    assert record.round_ms == pytest.approx(40.0)
    assert made.state.policy is before


def test_it_is_overdue_only_from_the_opening_on():
    made = opening()
    limits = made.state.config.limits
    made.feed(events.Tick(limits.verdict_wait - 0.1))
    late = limits.opening_wait - 0.1
    made.feed(events.WorkerOpened(late, Role.VERIFIER, "v", made.state.epoch))
    made.feed(events.Tick(late + limits.verdict_wait - 0.1))
    assert made.state.verifier is not None
    assert rounds.next_wake(made.state, late) == late + limits.verdict_wait
    made.feed(events.Tick(late + limits.verdict_wait))
    assert made.state.verifier is None


@pytest.mark.parametrize("busy", [True, False])
def test_where_the_opening_fails_the_next_verifier_gets_a_block_of_its_own(busy):
    made = opening()
    epoch = made.state.epoch
    made.feed(events.WorkerLost(1.0, Role.VERIFIER, "v", "full", busy=busy, epoch=epoch))
    assert made.state.in_flight == ()
    # What the first one still says of the block that it cannot know is of an older epoch.
    assert made.state.epoch > epoch
    made.feed(events.WorkerAttached(1.0, Role.VERIFIER, "v"))
    made.feed(
        events.WorkerLost(1.0, Role.VERIFIER, "v", "no such session on this link", epoch=epoch)
    )
    assert made.state.verifier is not None
    first, second = made.sent()
    assert (second.round, second.base_len) == (first.round + 1, 0)
    assert second.epoch > first.epoch
    made.feed(events.WorkerOpened(1.0, Role.VERIFIER, "v", made.state.epoch))
    answer(made, 4, at=1.0)
    assert made.state.committed == (4,)


def test_after_a_loss_in_the_middle_it_goes_on_from_what_is_committed():
    made = opening()
    made.feed(events.WorkerOpened(0.0, Role.VERIFIER, "v", made.state.epoch))
    answer(made, 4, at=0.0)
    made.feed(events.WorkerLost(1.0, Role.VERIFIER, "v", "gone"))
    made.feed(events.WorkerAttached(1.0, Role.VERIFIER, "w"))
    assert made.sent()[-1].base_len == 1


# --- behind one another --------------------------------------------------------------


def plain(mode: VerifyMode = GREEDY, **more) -> Machine:
    """A session without a drafting method, whose verifier has it open."""
    return Machine(mode, plain_ahead=True, method="", **more).serve()


def resting(rounds: int, mode: VerifyMode = GREEDY, **more) -> Machine:
    """A session whose drafter rests for so many rounds more, before its first block."""
    made = Machine(mode, plain_ahead=True, **more)
    made.state = replace(made.state, policy=Marginal(4, 4, resting=rounds))
    made.serve()
    return made


def places(made: Machine) -> list[tuple[int, int]]:
    """Of every block sent: where it stands, and the round that it follows."""
    return [(block.base_len, block.extends_round) for block in made.sent()]


@MODES
def test_without_a_drafting_method_one_block_is_ahead_of_the_one_under_way(mode):
    made = plain(mode)
    assert places(made) == [(0, 0), (1, 1)]
    answer(made, 5, at=1.0)
    assert places(made) == [(0, 0), (1, 1), (2, 2)]
    answer(made, 6, at=2.0)
    assert made.state.committed == (5, 6)
    assert all(len(block.tree) == 0 and block.want_bonus for block in made.sent())
    assert {block.epoch for block in made.sent()} == {made.state.epoch}


def test_none_leaves_for_a_token_that_is_not_wanted():
    made = plain(max_tokens=2)
    answer(made, 5, at=1.0)
    assert places(made) == [(0, 0), (1, 1)]
    answer(made, 6, at=2.0)
    assert (made.state.committed, made.state.in_flight) == ((5, 6), ())


def test_none_leaves_while_the_store_is_behind():
    made = plain()
    answer(made, 5, at=1.0, stored=False)
    assert len(made.state.in_flight) == 1
    answer(made, 6, at=1.0, stored=False)
    assert len(made.state.unpersisted) == made.state.config.limits.max_unpersisted == 2
    assert made.state.in_flight == ()
    made.feed(events.Persisted(2.0, 1))
    assert len(made.state.in_flight) == 1
    made.feed(events.Persisted(2.0, 2))
    assert len(made.state.in_flight) == 2


def test_none_leaves_while_a_drafter_is_at_work_or_where_it_was_not_asked_for():
    made = Machine(GREEDY, plain_ahead=True, count=0).serve()
    assert len(made.sent()) == 1
    made = Machine(GREEDY, method="").serve()
    assert len(made.sent()) == 1


def test_blocks_are_ahead_until_the_last_round_of_a_rest():
    made = resting(3)
    assert places(made) == [(0, 0), (1, 1)]
    # The block of the opening is no round of the rest.
    for number in range(4):
        answer(made, number, at=1.0 + number)
        assert made.state.policy.resting == 3 - number
    assert places(made)[:4] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert not any(block.behind for block in made.state.in_flight)


def test_a_load_that_allows_no_draft_lets_them_go_ahead():
    made = Machine(GREEDY, plain_ahead=True, count=0).feed(events.Capped(0.0, 0)).serve()
    assert len(made.sent()) == 2


def test_with_a_drafter_tokens_that_are_drawn_are_not_asked_for_ahead():
    assert len(resting(9, STANDARD).sent()) == 1


def test_what_a_drafter_still_says_fits_behind_the_blocks_ahead_or_is_void():
    made = resting(9).draft(5, 6, 8)
    answer(made, 5, at=1.0)
    assert made.state.speculated == (6, 8)
    answer(made, 7, at=2.0)
    assert (made.state.committed, made.state.speculated) == ((5, 7), ())
    assert not any(block.doomed for block in made.state.in_flight)


def test_a_round_that_was_ahead_begins_with_the_verdict_before_or_its_step():
    made = plain()
    answer(made, 5, at=1.0, verify_ms=30.0)
    answer(made, 6, at=1.031, verify_ms=30.0)
    answer(made, 7, at=1.060, verify_ms=30.0)
    records = [persist.commit.record for persist in made.performed(events.Persist)]
    assert [record.started_at for record in records] == pytest.approx([0.0, 1.0, 1.030])
    assert [record.round_ms for record in records[1:]] == pytest.approx([31.0, 30.0])


def test_a_verifier_of_before_that_discards_one_gets_none_any_more():
    made = plain()
    answer(made, 5, at=1.0)
    for number in (2, 3):
        block = made.state.in_flight[0]
        assert block.round == number
        made.feed(
            events.VerdictArrived(1.0, "v", Verdict("s", block.epoch, number, 1, discarded=True))
        )
    assert made.state.verifier is not None
    assert places(made)[3:] == [(1, 0)]
    answer(made, 6, at=2.0)
    assert made.state.committed == (5, 6)
    assert len(made.state.in_flight) == 1
    made.feed(events.WorkerLost(2.0, Role.VERIFIER, "v", "gone")).feed(events.Persisted(2.0, 9))
    made.attach(Role.VERIFIER, "w")
    assert len(made.state.in_flight) == 2


def test_after_a_loss_both_blocks_are_asked_for_anew():
    made = plain()
    answer(made, 5, at=1.0)
    made.feed(events.WorkerLost(1.0, Role.VERIFIER, "v", "gone"))
    assert made.state.in_flight == ()
    made.attach(Role.VERIFIER, "w")
    assert places(made)[3:] == [(1, 0), (2, 4)]
    assert made.sent()[3].epoch > made.sent()[2].epoch
