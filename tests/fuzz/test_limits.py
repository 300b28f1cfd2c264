"""What nobody may do without end, however patient."""

from dataclasses import replace

import pytest
from orchestrator.core import rounds
from orchestrator.core.events import (
    Begin,
    Release,
    Tick,
    WorkerAttached,
)
from orchestrator.core.pacing import make_policy
from orchestrator.core.rounds import EPOCHS_PER_TERM, MOST_RESYNCS, MOST_TERMS, new_session

from orchestrator.steering.config import SessionConfig
from services.contract.types import ResolvedSampling, Role, VerifyMode

CONFIG = SessionConfig(
    "s", (1, 2), VerifyMode.GREEDY, ResolvedSampling(), 1, method="model", window=4
)


def drafting(term=1):
    """A session with a drafter and no verifier."""
    state = new_session(replace(CONFIG, term=term), make_policy("eager", 4))
    state, _ = rounds.step(state, Begin(0.0))
    return rounds.step(state, WorkerAttached(0.0, Role.DRAFTER, "d1"))[0]


@pytest.mark.parametrize(("before", "lost"), [(0, False), (MOST_RESYNCS - 1, True)])
def test_a_drafter_that_is_always_started_anew_is_lost_in_the_end(before, lost):
    state = replace(drafting(), resync=True, resyncs=before)
    state, actions = rounds.step(state, Tick(1.0))
    assert (Release(Role.DRAFTER, "d1") in actions) is lost
    assert (state.drafter is None) is lost


def test_the_epochs_of_the_last_term_fit_the_wire():
    assert drafting(MOST_TERMS).epoch + EPOCHS_PER_TERM - 1 < 1 << 32
    assert drafting(MOST_TERMS + 2).epoch >= 1 << 32
