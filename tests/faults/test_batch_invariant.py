"""Texts in bfloat16 through faults, with verifiers whose rows do not depend on their company."""

from collections.abc import Iterator

import pytest

from testkit.chaos.__main__ import SAME_TEXT, cases, computing, parser
from testkit.chaos.run import Chaos, ChaosPlan
from testkit.chaos.site import Layout
from tests.faults.conftest import served
from tests.faults.kit import WIRE_SECONDS, Site

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

KINDS = ("verifier SIGKILL", "orchestrator SIGKILL", "drafter SIGKILL", "verifier wire cut")


@pytest.fixture(scope="module")
def shared(models: tuple[str, str]) -> Iterator[Site]:
    flags = computing(parser().parse_args(["--batch-invariant"]))
    with served(Layout(*models, wire_seconds=WIRE_SECONDS, verifier_flags=flags)) as site:
        yield site


def test_the_option_is_bfloat16_unless_it_says_otherwise():
    given = parser().parse_args
    invariant = ("--dtype", "bfloat16", "--batch-invariant")
    assert computing(given(["--batch-invariant"])) == invariant
    assert computing(given(["--batch-invariant", "--dtype", "float32"]))[1] == "float32"
    assert computing(given(["--dtype", "bfloat16"])) == ("--dtype", "bfloat16")
    assert computing(given([])) == ("--dtype", "float32")


async def test_each_text_in_bfloat16_is_that_of_plain_decoding_through_faults(site: Site):
    made = cases(100, SAME_TEXT)[:8]
    assert all(case.same_text for case in made)
    assert {case.options["temperature"] for case in made} == {0.0, 0.8}
    plan = ChaosPlan(seed=4, faults=len(KINDS), sessions=8, at_once=4, kinds=KINDS)
    outcome = await Chaos(site.cluster, made, plan).run()
    assert outcome.violations == []
    assert set(outcome.counts) == set(KINDS)
