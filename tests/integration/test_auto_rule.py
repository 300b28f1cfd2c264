"""AUTO follows what the workers say of themselves: how fast they are, and what they can do."""

import pytest

from services.contract.types import Role
from tests.integration.cluster import PROMPT, cluster, start_drafter, start_verifier
from tests.waiting import until

SAMPLED = {"temperature": 1.0, "max_tokens": 12, "include_rounds": True}


def paced(pool, monkeypatch, verify_ms, draft_ms):
    times = {Role.VERIFIER: verify_ms, Role.DRAFTER: draft_ms}
    monkeypatch.setattr(pool, "step_ms", lambda role, method="": times[role])


@pytest.mark.parametrize(
    ("pacing", "verify_ms", "draft_ms", "rule"),
    [
        ("eager", 60.0, 5.0, "block"),
        ("eager", 60.0, 30.0, "coupled"),
        ("eager", 0.0, 0.0, "block"),
        ("fixed", 60.0, 30.0, "block"),
    ],
)
async def test_auto_is_block_unless_the_drafter_is_slow(
    monkeypatch, pacing, verify_ms, draft_ms, rule
):
    workers = [await start_verifier()], [await start_drafter()]
    async with cluster(*workers, pacing=pacing) as running:
        paced(running.pool, monkeypatch, verify_ms, draft_ms)
        done = await running.client.generate(PROMPT, **SAMPLED)
        assert {one.rejection_sample_method for one in done.rounds} == {rule}


async def test_the_pool_knows_how_long_a_step_takes_by_role_and_method():
    workers = [await start_verifier()], [await start_drafter()]
    async with cluster(*workers) as running:
        await running.client.generate(PROMPT, temperature=0.0, max_tokens=200, ignore_eos=True)
        await until(lambda: all(running.pool.step_ms(role) for role in Role))
        assert running.pool.step_ms(Role.DRAFTER, "model") > 0
        assert running.pool.step_ms(Role.DRAFTER, "ngram") == 0
