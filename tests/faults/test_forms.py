"""Answers of JSON schemas that are broken off, resumed and moved: each is of its form."""

import pytest

from testkit.chaos.health import whole
from testkit.chaos.site import Cluster, Layout
from testkit.structured.generations import METHODS, MODEL_WAYS, wanted
from testkit.structured.run import VERIFIER_KILLED, Disturbed, StructuredResult
from tests.faults.kit import WIRE_SECONDS

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

COUNT = 24


async def test_answers_are_of_their_form_through_resumes_and_a_dying_verifier(models):
    layout = Layout(
        *models, drafters=1, wire_seconds=WIRE_SECONDS, drafter_flags=("--method", METHODS)
    )
    outcome = StructuredResult()
    every = [wanted(3 * number, 2, MODEL_WAYS) for number in range(COUNT)]
    with Cluster(layout) as cluster:
        await whole(cluster)
        disturbed = Disturbed(cluster, 2, COUNT * 2 // 3, outcome.records.append)
        outcome.violations += await disturbed.run(every, at_once=6)
    assert outcome.wrong == []
    assert len(outcome.ended) == COUNT
    assert len({one.form for one in outcome.ended} | {one.way for one in outcome.ended}) >= 15
    assert outcome.struck[0].fault == VERIFIER_KILLED
    assert sum(one.resumes for one in outcome.ended) > COUNT // 2
    assert sum(one.moves for one in outcome.ended) > COUNT // 4
    assert (
        0 < sum(one.accepted for one in outcome.ended) < sum(one.drafted for one in outcome.ended)
    )
