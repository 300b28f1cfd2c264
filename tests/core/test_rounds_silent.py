"""A verifier that is alive and says nothing of a block."""

import pytest

from orchestrator.core import rounds
from orchestrator.core.events import NeedWorker, Release, Tick
from services.contract.types import Role, VerifyMode
from tests.core.machine import Machine


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
