"""Cores are divided among the processes that run a model."""

from __future__ import annotations

import pytest

from services.cluster.cores import plan_cores


def test_two_cores_with_a_model_drafter_give_one_to_each():
    plan = plan_cores([0, 1], verifiers=1, model_drafters=1)
    assert plan.verifiers == ((0,),)
    assert plan.drafters == ((1,),)


def test_without_a_model_drafter_the_verifier_has_every_core():
    assert plan_cores([0, 1], verifiers=1, model_drafters=0).verifiers == ((0, 1),)


def test_only_the_cores_of_this_process_are_given():
    assert plan_cores([5, 9], verifiers=1, model_drafters=1).drafters == ((9,),)


@pytest.mark.parametrize("cores", range(1, 9))
@pytest.mark.parametrize("verifiers", range(1, 4))
@pytest.mark.parametrize("drafters", range(3))
def test_every_process_has_a_core_and_none_is_shared_while_there_are_enough(
    cores, verifiers, drafters
):
    plan = plan_cores(range(cores), verifiers, drafters)
    assert len(plan.verifiers) == verifiers
    assert len(plan.drafters) == drafters
    given = [core for hand in plan.verifiers + plan.drafters for core in hand]
    assert all(plan.verifiers + plan.drafters)
    if cores >= verifiers + drafters:
        assert sorted(given) == list(range(cores))
    else:
        assert set(given) == set(range(cores))
