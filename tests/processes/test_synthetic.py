"""`--synthetic` in real processes: everything but the models."""

import asyncio
import json
from itertools import dropwhile

import pytest

from bench.runner import WAVES, Trial, run_schedule
from bench.synthetic.network import Network
from bench.synthetic.scenario import Worlds
from bench.synthetic.serving import served, ways
from services.cluster.figures import Measured
from services.engine.synthetic.agreement import agreements
from services.engine.synthetic.spec import SyntheticSpec
from tests.processes.conftest import run

pytestmark = pytest.mark.processes

ACCEPTED = (6, 4, 1, 6, 6, 2, 1, 1, 5, 3, 6, 6, 4)
TIMES = {
    "name": "quick",
    "verifier": {"plain_ms": 0.2, "verify_ms": 0.3},
    "drafter": {"draft_ms": 0.1},
    "agreement": {"accepted": ACCEPTED, "drafted": 5},
}
OPTIONS = {"max_tokens": sum(ACCEPTED), "temperature": 0.0, "include_rounds": True}


async def replay(delays: dict[str, float]) -> dict[str, Trial]:
    trials: list[Trial] = []
    worlds = Worlds((), 1, (2,), OPTIONS)
    spec = SyntheticSpec.model_validate(TIMES)
    with Network(delays) as network:
        async with served(ways(("eager",)), spec, network.before, lambda _: None) as each:
            await run_schedule(each, worlds, trials.append, lambda _: None)
    return {trial.configuration: trial for trial in trials}


def test_real_processes_replay_a_trace_token_by_token_behind_a_slow_network():
    trials = asyncio.run(replay({"verifier": 1.0, "drafter": 0.5}))
    for way in ("fixed", "eager"):
        for result in trials[way].results:
            assert emitted(result) == by_the_trace([one.draft_tokens for one in result.rounds])
    # The first ones may leave before the drafter is there, the last is cut by the length limit,
    # and a machine that holds the drafter up for a second makes a shorter one.
    inner = [
        tokens
        for each in trials["fixed"].results
        for tokens in dropwhile(lambda own: not own, [one.draft_tokens for one in each.rounds[:-1]])
    ]
    assert max(inner) == 5
    assert inner.count(5) > 0.8 * len(inner)
    for result in trials["plain"].results:
        assert emitted(result) == [1] * sum(ACCEPTED)
    texts = {way: [one.token_ids for one in trial.results] for way, trial in trials.items()}
    assert texts["eager"] == texts["fixed"] == texts["plain"]
    assert len(set(texts["plain"])) == 2 * WAVES
    assert all(trial.cpu_s["orchestrator"] > 0 for trial in trials.values())


def emitted(result: Measured) -> list[int]:
    return [one.emitted_tokens for one in result.rounds]


def by_the_trace(drafted: list[int]) -> list[int]:
    """What rounds emit that hold so many tokens each: what agrees, and one more."""
    places, done, counts = agreements(ACCEPTED, 5), 0, []
    for count in drafted:
        block = places[done : done + count]
        counts.append(1 + (block.index(False) if False in block else len(block)))
        done += counts[-1]
    assert done == sum(ACCEPTED)
    return counts


def test_rounds_of_five_behind_a_drafter_that_is_there_are_those_of_the_trace():
    assert by_the_trace([5] * (len(ACCEPTED) - 1) + [3]) == list(ACCEPTED)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("verifier", "--synthetic", "FILE"), "verifier.verify_ms: Field required"),
        (("drafter", "--synthetic", "FILE"), "verifier.verify_ms: Field required"),
        (("up", "--synthetic", "FILE"), "verifier.verify_ms: Field required"),
        (("verifier", "--synthetic", "FILE", "--target", "m"), "no model runs"),
        (("drafter", "--synthetic", "FILE", "--draft", "m"), "no model runs"),
        (("up", "--synthetic", "FILE", "--draft", "m"), "--draft: m is given"),
        (("up", "--synthetic", "FILE", "--batch-invariant"), "--batch-invariant: --synthetic"),
        (("up",), "--target is needed"),
        (("verifier", "--synthetic", "FILE", "--drafting", "skip"), "has no model to draft with"),
        (("bench", "--trace", "gsm8k"), "--trace: 'gsm8k' is not one of"),
    ],
)
def test_a_synthetic_cluster_that_cannot_be_ends_with_one_line(tmp_path, arguments, named):
    file = tmp_path / "times.json"
    file.write_text(json.dumps(TIMES | {"verifier": {"plain_ms": 1}}))
    done = run(*(str(file) if one == "FILE" else one for one in arguments))
    assert done.returncode in (1, 2)
    assert done.stderr.count("\n") == 1
    assert named in done.stderr
