"""Answers of JSON schemas that are broken off, resumed and moved: each is of its form."""

import pytest

from testkit.chaos.forms import METHODS, MODEL_WAYS, form_cases
from testkit.chaos.health import whole
from testkit.chaos.run import Chaos, ChaosPlan
from testkit.chaos.site import ALWAYS_DRAFT, Cluster, Layout
from tests.faults.kit import WIRE_SECONDS

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

COUNT = 24
FAULTS = ("verifier SIGKILL", "verifier wire cut")


async def test_answers_are_of_their_form_through_resumes_and_a_dying_verifier(models):
    layout = Layout(
        *models,
        drafters=1,
        wire_seconds=WIRE_SECONDS,
        drafter_flags=("--method", METHODS),
        orchestrator_flags=ALWAYS_DRAFT,
    )
    plan = ChaosPlan(seed=2, faults=len(FAULTS), sessions=COUNT, at_once=6, kinds=FAULTS)
    with Cluster(layout) as cluster:
        await whole(cluster)
        outcome = await Chaos(cluster, form_cases(2, MODEL_WAYS), plan).run()
    assert outcome.violations == []
    assert set(outcome.counts) == set(FAULTS)
    assert outcome.formed.sessions == outcome.sessions >= COUNT
    assert outcome.formed.resumed > COUNT // 2
    assert outcome.formed.moved > 0
    assert 0 < outcome.formed.accepted < outcome.formed.drafted
