"""A plain block goes to the verifier with the opening, and is answered right behind it."""

from __future__ import annotations

import pytest

from orchestrator.core import rounds
from orchestrator.core.events import (
    OpenOnWorker,
    Persist,
    SendVerify,
    Tick,
    WorkerAttached,
    WorkerLost,
    WorkerOpened,
)
from services.common.types import Role, VerifyMode
from tests.core.machine import Machine

GREEDY, STANDARD = VerifyMode.GREEDY, VerifyMode.STANDARD
MODES = pytest.mark.parametrize("mode", [GREEDY, STANDARD], ids=lambda mode: mode.name)


def opening(mode: VerifyMode = GREEDY, **more) -> Machine:
    """A session whose verifier is opening it."""
    made = Machine(mode, opening_block=True, **more)
    made.feed(WorkerAttached(0.0, Role.VERIFIER, "v"))
    return made


def answer(made: Machine, token: int, at: float, verify_ms: float = 0.0) -> None:
    """The verdict on a block without drafts."""
    made.answer(token, accepted=0, whole=True, at=at, verify_ms=verify_ms)


@MODES
def test_the_first_block_leaves_with_the_opening_and_holds_no_draft(mode):
    made = opening(mode)
    kinds = [type(action) for action in made.actions if not hasattr(action, "role")]
    assert kinds.index(SendVerify) > kinds.index(OpenOnWorker)
    [block] = made.sent()
    assert (block.round, block.base_len, len(block.tree), block.want_bonus) == (1, 0, 0, True)
    made.draft(1, 2)
    made.feed(WorkerOpened(2.0, Role.VERIFIER, "v", made.state.epoch))
    assert len(made.sent()) == 1


@MODES
def test_its_verdict_is_the_first_token_and_what_was_drafted_behind_it_goes_on(mode):
    made = opening(mode)
    made.draft(1, 2)
    made.feed(WorkerOpened(2.0, Role.VERIFIER, "v", made.state.epoch))
    answer(made, 1, at=2.0)
    assert made.state.committed == (1,)
    assert made.state.speculated == (2,)


def test_it_is_a_round_of_the_step_that_verified_it_and_pacing_learns_nothing_of_it():
    made = opening()
    before = made.state.policy
    made.feed(WorkerOpened(5.0, Role.VERIFIER, "v", made.state.epoch))
    answer(made, 1, at=5.0, verify_ms=40.0)
    [persist] = made.performed(Persist)
    record = persist.commit.record
    assert (record.started_at, record.ended_at) == (pytest.approx(4.96), 5.0)
    assert record.round_ms == pytest.approx(40.0)
    assert made.state.policy is before


def test_it_is_overdue_only_from_the_opening_on():
    made = opening()
    limits = made.state.config.limits
    made.feed(Tick(limits.verdict_wait - 0.1))
    late = limits.opening_wait - 0.1
    made.feed(WorkerOpened(late, Role.VERIFIER, "v", made.state.epoch))
    made.feed(Tick(late + limits.verdict_wait - 0.1))
    assert made.state.verifier is not None
    assert rounds.next_wake(made.state, late) == late + limits.verdict_wait
    made.feed(Tick(late + limits.verdict_wait))
    assert made.state.verifier is None


@pytest.mark.parametrize("busy", [True, False])
def test_where_the_opening_fails_the_next_verifier_gets_a_block_of_its_own(busy):
    made = opening()
    epoch = made.state.epoch
    made.feed(WorkerLost(1.0, Role.VERIFIER, "v", "full", busy=busy, epoch=epoch))
    assert made.state.in_flight == ()
    # What the first one still says of the block that it cannot know is of an older epoch.
    assert made.state.epoch > epoch
    made.feed(WorkerAttached(1.0, Role.VERIFIER, "v"))
    made.feed(WorkerLost(1.0, Role.VERIFIER, "v", "no such session on this link", epoch=epoch))
    assert made.state.verifier is not None
    first, second = made.sent()
    assert (second.round, second.base_len) == (first.round + 1, 0)
    assert second.epoch > first.epoch
    made.feed(WorkerOpened(1.0, Role.VERIFIER, "v", made.state.epoch))
    answer(made, 4, at=1.0)
    assert made.state.committed == (4,)


def test_after_a_loss_in_the_middle_it_goes_on_from_what_is_committed():
    made = opening()
    made.feed(WorkerOpened(0.0, Role.VERIFIER, "v", made.state.epoch))
    answer(made, 4, at=0.0)
    made.feed(WorkerLost(1.0, Role.VERIFIER, "v", "gone"))
    made.feed(WorkerAttached(1.0, Role.VERIFIER, "w"))
    assert made.sent()[-1].base_len == 1
