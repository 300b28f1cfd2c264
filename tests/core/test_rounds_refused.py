"""A verifier that gives a session up."""

from dataclasses import replace

import pytest

from orchestrator.core.events import Suspend, SuspendReason, WorkerLost
from services.contract.types import Role, VerifyMode
from tests.core.machine import Machine


@pytest.mark.parametrize(
    ("for_good", "reason"),
    [(True, SuspendReason.IMPOSSIBLE), (False, SuspendReason.REFUSED)],
)
def test_what_fails_for_good_is_told_apart_from_a_refusal(for_good, reason):
    made = Machine(VerifyMode.GREEDY).serve()
    assert made.state.verifier is not None
    worker, epoch = made.state.verifier.worker, made.state.verifier.epoch
    lost = WorkerLost(1.0, Role.VERIFIER, worker, "why", fatal=True, epoch=epoch, for_good=for_good)
    made.feed(replace(lost, epoch=epoch - 1))
    assert not made.performed(Suspend), "a late notice of an earlier open"
    made.feed(lost)
    assert made.performed(Suspend) == [Suspend(reason, "why")]
