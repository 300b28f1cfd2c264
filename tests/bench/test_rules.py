"""What the bench of the rules times is what it says."""

from dataclasses import replace

import pytest
import torch

from research.rules import Scene, own_tree, sampled_tree, show, stepper, steppers
from services.contract.types import ResolvedSampling, VerifyMode

SAMPLING = ResolvedSampling(top_p=0.9, frequency_penalty=0.3)
CHAIN = Scene(3 * torch.randn(9, 400, generator=torch.Generator().manual_seed(3)), tuple(range(20)))
TREE = replace(CHAIN, parents=(-1, -1, -1, 0, 0, 0, 3, 3))
EXACT = [VerifyMode.GREEDY, VerifyMode.COUPLED]


@pytest.mark.parametrize("mode", EXACT)
def test_an_exact_rule_is_timed_on_a_draft_that_is_accepted_whole(mode):
    [decision] = stepper(CHAIN, mode, SAMPLING)()
    assert decision.path == tuple(range(8))
    assert decision.all_accepted
    assert decision.final_token is not None


@pytest.mark.parametrize("mode", EXACT)
def test_an_exact_rule_on_a_tree_walks_to_a_leaf(mode):
    [decision] = stepper(TREE, mode, SAMPLING)()
    assert decision.path == (0, 3, 6)
    assert own_tree(TREE, mode, SAMPLING).parents == TREE.parents


@pytest.mark.parametrize("scene", [CHAIN, TREE])
def test_a_rejection_rule_is_timed_on_a_draft_with_usable_laws(scene):
    tree = sampled_tree(scene, VerifyMode.STANDARD, SAMPLING)
    assert tree.q is not None
    assert len(tree.q) == len(set(scene.above))
    [decision] = stepper(scene, VerifyMode.STANDARD, SAMPLING)()
    assert decision.bad_q_rows == 0
    assert 0 <= decision.final_token < 400


def test_every_rule_runs_and_has_a_line():
    made = steppers(CHAIN, TREE)
    for step in made.values():
        step()
    share = {"median": 0.05, "min": 0.04, "max": 0.06}
    text = show(
        {
            "ms": dict.fromkeys(made, 3.0),
            "least_ms": dict.fromkeys(made, 2.5),
            "shares": dict.fromkeys(made, share),
        }
    )
    assert len(text.splitlines()) == len(made) + 1
    assert text.splitlines()[1].split() == ["greedy", "3.00", "2.50", "5.0%", "4.0%", "6.0%"]
