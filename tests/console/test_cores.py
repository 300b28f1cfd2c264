"""Cores are divided among the processes that run a model."""

from __future__ import annotations

import pytest

from services.cluster.cores import plan_cores


@pytest.mark.parametrize("cores", range(1, 9))
@pytest.mark.parametrize("verifiers", range(1, 4))
@pytest.mark.parametrize("drafters", range(3))
def test_every_process_has_a_core_and_none_is_shared_while_there_are_enough(
    cores, verifiers, drafters
):
    mine = list(range(5, 5 + 2 * cores, 2))
    plan = plan_cores(mine, verifiers, drafters)
    assert len(plan.verifiers) == verifiers
    assert len(plan.drafters) == drafters
    given = [core for hand in plan.verifiers + plan.drafters for core in hand]
    assert all(plan.verifiers + plan.drafters)
    if cores >= verifiers + drafters:
        assert sorted(given) == mine
    else:
        assert set(given) == set(mine)
