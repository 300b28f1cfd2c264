"""A call of torch or of the engine fails in a drafter: one session goes, and nothing leaks."""

import pytest

from services.contract import types as t
from services.drafter.methods.model.model import ModelDrafter
from services.engine.native import NativeEngine
from tests.services.drafter_kit import FixedGrowth, Harness, real_engine
from tests.services.failing_calls import BROKEN, NO_MEMORY, Failing

PROMPTS = {"chain": (5, 6, 7), "drawn": (9, 8, 7, 6), "tree": (11, 12)}
EVERY = 7
"""One call in so many fails, each in a run of its own."""


@pytest.fixture(scope="module")
def engine():
    return real_engine(kv_capacity_tokens=2048)


def opened(harness, name):
    mode = t.VerifyMode.BLOCK if name == "drawn" else t.VerifyMode.GREEDY
    law = {"max_tokens": 24, "temperature": float(name == "drawn"), "mode": mode, "window": 4}
    harness.open(name, PROMPTS[name], num_candidates=1 + (name == "tree"), **law)


def served(engine, failing, patch):
    """Open three sessions, draft, and say what was drafted; what failed, and what was sent."""
    failing.watch(patch, NativeEngine, "forward")
    drafter = ModelDrafter(engine, trees=FixedGrowth)
    harness, failed, sent = Harness(engine, drafter=drafter), {}, {}
    with failing:
        for name in PROMPTS:
            opened(harness, name)
        for turn in range(3):
            for _ in range(40):
                if not harness.core.step():
                    break
            failed |= harness.gone
            drafts = harness.drafted()
            for draft in drafts:
                sent.setdefault(draft.session, []).append(draft.tree.token_ids)
            for name in {draft.session for draft in drafts} - failed.keys():
                own = harness.session_of(name)
                tail = own.text[own.prompt_length + own.committed_length :]
                harness.say(name, own.committed_length, [*tail[:turn], 3])
        harness.close("chain")
        harness.core.drop_link(0)
    assert harness.core.progress().sessions == 0
    return failed, sent


@pytest.mark.parametrize("error", [NO_MEMORY, BROKEN], ids=["memory", "bug"])
def test_a_call_that_fails_costs_one_session_at_most(engine, error):
    with pytest.MonkeyPatch.context() as patch:
        whole = Failing()
        failed, sent = served(engine, whole, patch)
    assert not failed
    assert set(sent) == set(PROMPTS)
    for number in range(0, whole.calls, max(EVERY, whole.calls // 60)):
        with pytest.MonkeyPatch.context() as patch:
            failed, got = served(engine, Failing(number, error), patch)
        assert len(failed) <= 1, (number, failed)
        reason = t.FailureReason.INTERNAL if error is BROKEN else t.FailureReason.CAPACITY
        assert {gone.reason for gone in failed.values()} <= {reason}
        assert set(PROMPTS) - failed.keys() <= set(got), number
        assert engine.kv_tokens_used == 0, number
        arena = engine.budget.arena
        assert all(extent.free == extent.count for extent in arena.extents), number
