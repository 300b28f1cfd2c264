"""Trees of the model drafter whose shape follows from what was accepted."""

from math import prod

import pytest

from services.contract.types import ResolvedSampling
from services.drafter.methods.graph.tree_growth import PRIOR, Growth, MeasuredGrowth, TreeCosts
from services.drafter.methods.graph.tree_shape import best_shape, most_probable
from services.drafter.methods.model.model import ModelDrafter
from tests.services.drafter_kit import (
    EXACT,
    SAMPLED,
    VOCAB,
    FakeEngine,
    FixedGrowth,
    Harness,
    tokens_of,
)

RATES = (0.5, 0.3, 0.1)


def shaped(shape):
    """A plan that always says this shape."""
    plan = FixedGrowth(nodes=len(shape), rates=RATES)
    plan.growth = lambda depth: Growth(shape.widths, len(shape), RATES)
    return plan


def harness(trees):
    """A core whose trees grow as plans say that are made by `trees`."""
    engine = FakeEngine()
    return Harness(engine, drafter=ModelDrafter(engine, trees=trees))


def measured():
    return MeasuredGrowth(TreeCosts())


def drafted(made, **changes):
    return made.draft(**({"num_candidates": 4, "window": 8} | changes))


def ranked(engine, tree, text):
    """For each node which candidates lead to it from the text, by rank."""
    paths = []
    for token, parent in zip(tree.token_ids, tree.parents or (), strict=True):
        above, ranks = paths[parent] if parent >= 0 else (text, ())
        best = engine.logits(above).topk(VOCAB).indices.tolist()
        paths.append(([*above, token], (*ranks, best.index(token))))
    return {ranks for _, ranks in paths}


def worth(paths):
    """What each node adds: paths of the same ranks in another order are worth the same."""
    return sorted(prod(RATES[rank] for rank in ranks) for ranks in paths)


@pytest.mark.parametrize(("nodes", "depth"), [(3, 1), (7, 3), (16, 2), (16, 4), (24, 6)])
def test_a_greedy_tree_has_exactly_the_shape_that_was_worked_out(nodes, depth):
    shape = most_probable(RATES, nodes, depth)
    made = harness(lambda: shaped(shape))
    tree = drafted(made).tree
    assert worth(ranked(made.engine, tree, [1, 2, 3])) == pytest.approx(sorted(shape.reach))
    assert made.engine.forwards == [[3], *([width] for width in shape.widths[1:])]


@pytest.mark.parametrize("mode", EXACT)
def test_the_target_given_to_itself_drafts_a_path_that_is_accepted_to_full_depth(mode):
    sampling = ResolvedSampling(temperature=0.7, max_tokens=60)
    shape = most_probable(RATES, 12, 5)
    law = {"mode": mode, "sampling": sampling}
    tree = drafted(harness(lambda: shaped(shape)), **law).tree
    at, left = -1, tokens_of(Harness().drafts(window=shape.depth, **law))
    assert len(left) == shape.depth
    for token in left:
        children = [node for node, parent in enumerate(tree.parents or ()) if parent == at]
        at = next(node for node in children if tree.token_ids[node] == token)


@pytest.mark.parametrize("mode", SAMPLED)
def test_a_tree_that_is_drawn_stays_a_comb(mode):
    own = {"num_candidates": 4, "window": 3, "mode": mode}
    assert harness(FixedGrowth).draft(**own).tree == Harness().draft(**own).tree


def test_the_plan_is_told_which_candidate_the_text_took_and_where_it_took_none():
    plan = shaped(most_probable(RATES, 9, 3))
    made = harness(lambda: plan)
    tree = drafted(made).tree
    second = [node for node, parent in enumerate(tree.every_parent) if parent == -1][1]
    token, below = tree.token_ids[second], tree.every_parent.count(second)
    best = made.engine.logits([1, 2, 3, token]).topk(3).indices
    other = next(t for t in range(VOCAB) if t not in best)
    made.say("s", 0, [token, other])
    made.run()
    assert below
    assert plan.seen == [(1, 3), (None, 3)]


def test_rates_are_hits_per_try_and_start_from_a_prior():
    plan = measured()
    assert plan.rates == pytest.approx(PRIOR)
    for _ in range(4000):
        for hit in (0, 0, 1, None):
            plan.observe(hit, 3)
    assert plan.rates[:3] == pytest.approx((0.5, 0.25, 0.0), abs=0.01)
    assert plan.rates[3:] == pytest.approx(PRIOR[3:]), "never tried"


def test_growth_is_the_shape_that_pays_most_for_the_rates_so_far():
    costs = TreeCosts(node=0.01, level=0.05, nodes=12, depth=4)
    plan = MeasuredGrowth(costs)
    sizes = []
    for hits in ([0] * 256, [None] * 4096):
        for hit in hits:
            plan.observe(hit, 4)
        growth = plan.growth(9)
        shape = best_shape(plan.rates, nodes=12, depth=4, verify=lambda n: 1 + 0.01 * n, draft=0.05)
        assert growth.widths == (shape.widths or (1,))
        assert growth.nodes == max(1, len(shape))
        sizes.append((growth.nodes, len(growth.widths)))
    assert sizes[0][1] == 4
    assert sizes[1] == (1, 1), "a draft that is never right costs as little as may be"


def test_a_draft_is_as_deep_as_there_is_room_for():
    plan = MeasuredGrowth(TreeCosts(level=0.0, node=0.0, nodes=16, depth=8))
    assert [len(plan.growth(depth).widths) for depth in (1, 2, 3)] == [1, 2, 3]
    made = harness(lambda: plan)
    tree = drafted(made, window=2).tree
    assert max(len(ranks) for ranks in ranked(made.engine, tree, [1, 2, 3])) == 2


def write(made, tokens):
    """The target's own text after the prompt 1, 2, 3, a token at a time."""
    text = []
    while len(text) < tokens:
        made.run()
        token = made.engine.greedy([1, 2, 3, *text])
        made.say("s", len(text), [token])
        text.append(token)


@pytest.mark.parametrize("scope", ["", "acme"])
def test_what_a_session_that_shares_learns_shapes_the_trees_of_all_of_its_mode(scope):
    made = harness(measured)
    made.open(num_candidates=4, window=8, phrase_scope=scope)
    write(made, 50)
    greedy, coupled = (made.drafter._plans[mode].rates for mode in EXACT)
    assert greedy[0] > 0.8 if scope else greedy == pytest.approx(PRIOR)
    assert coupled == pytest.approx(PRIOR)
