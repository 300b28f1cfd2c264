"""The search for a skip mask by itself: what it proposes, keeps and learns, and when it ends."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contract.errors import StartError
from services.drafter.methods.self_draft.mask_search import MaskSearch, SearchRules
from services.engine.skip_mask import SkipMask, every_second, whole

LAYERS = 8
START = every_second(LAYERS)
Score = Callable[[SkipMask], float]


def run(search, score, count, window=0):
    """Score what is proposed on one window, until the search ends."""
    proposed = []
    search.look_at(window)
    for _ in range(count):
        if search.ended:
            break
        proposed.append(search.propose())
        search.note(proposed[-1], score(proposed[-1]))
    return proposed


def lone(mask):
    """The fewer MLPs are skipped, the better."""
    return 0.9 - 0.1 * len(mask.mlp)


def constant(value):
    return lambda _: value


@st.composite
def starts(draw):
    layers = draw(st.integers(3, 12))
    some = st.frozensets(st.integers(0, layers - 1))
    return SkipMask(layers, draw(some), draw(some))


@given(starts(), st.floats(0.3, 0.9), st.integers(0, 9))
def test_candidates_skip_the_same_share_and_the_outer_layers_only_as_the_start_does(
    start, share, seed
):
    inner = frozenset(range(1, start.layers - 1))
    attention, mlp = start.attention | inner, start.mlp | inner
    size = int(share * (len(attention) + len(mlp)))
    if not size:
        return
    search = MaskSearch(start, SearchRules(share, guided_every=3), seed)
    first, *candidates = run(search, constant(0.5), 10)
    assert first == start
    assert len(candidates) == 9
    for mask in candidates:
        assert mask.layers == start.layers
        assert len(mask.attention) + len(mask.mlp) == size
        assert mask.attention <= attention
        assert mask.mlp <= mlp


def test_random_candidates_are_spread_over_all_sub_layers():
    masks = run(MaskSearch(START, SearchRules(guided_every=1000)), constant(0.5), 301)[1:]
    counts = [sum(layer in mask.attention for mask in masks) for layer in range(1, LAYERS - 1)]
    counts += [sum(layer in mask.mlp for mask in masks) for layer in range(1, LAYERS - 1)]
    # 5 of 12 are skipped: 125 of 300, give or take five standard deviations.
    assert all(82 < count < 168 for count in counts)
    assert len(set(masks)) > 200


def test_the_same_seed_gives_the_same_search_and_another_seed_another_one():
    first, again, other = (
        run(MaskSearch(START, SearchRules(guided_every=5), seed), lone, 60) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@given(st.lists(st.floats(0, 0.9), min_size=2, max_size=40))
def test_a_candidate_is_kept_only_with_a_greater_score_on_the_same_window(scores):
    search = MaskSearch(START, SearchRules())
    search.look_at("w")
    best = scores[0]
    search.note(search.propose(), best)
    for score in scores[1:]:
        mask = search.propose()
        assert search.note(mask, score) == (score > best)
        assert (search.best == mask) or score <= best
        best = max(best, score)
        assert search.score == best


def test_on_another_window_the_best_mask_is_scored_first_and_again():
    search = MaskSearch(START)
    kept = run(search, lambda mask: 0.5 if mask == START else 0.8, 2)[-1]
    assert (search.best, search.score) == (kept, 0.8)
    search.look_at("harder")
    assert search.score is None
    assert search.propose() == kept
    assert not search.note(kept, 0.2)
    assert (search.best, search.score) == (kept, 0.2)
    candidate = search.propose()
    assert search.note(candidate, 0.3), "it is better here, whatever was scored elsewhere"
    assert search.best == candidate


def test_looking_at_the_same_window_again_scores_nothing_again():
    search = MaskSearch(START)
    run(search, constant(0.5), 3)
    search.look_at(0)
    assert search.score == 0.5
    assert search.propose() != START


def test_it_ends_after_so_many_candidates_without_a_better_one():
    search = MaskSearch(START, SearchRules(patience=30))
    better = iter([0.5, *[0.4] * 20, 0.6])
    run(search, lambda _: next(better, 0.6), 1000)
    assert search.ended
    assert search.candidates == 21 + 30


def test_a_new_window_is_no_new_patience():
    search = MaskSearch(START, SearchRules(patience=30))
    for window in range(6):
        assert not search.ended
        run(search, constant(0.5), 6, window)
    assert search.ended
    assert search.candidates == 30


@pytest.mark.parametrize("first", [True, False])
def test_it_ends_with_a_score_that_is_enough(first):
    search = MaskSearch(START)
    scored = run(search, lambda mask: 0.96 if first or mask != START else 0.1, 1000)
    assert len(scored) == (1 if first else 2)
    assert search.ended
    assert search.best == scored[-1]


FREE = SkipMask.of(LAYERS, attention=[2, 5], mlp=[3])
"""What costs nothing when it is skipped, where everything else costs something of its own."""
GUIDED = SearchRules(share=0.25, guided_every=100, patience=1000)


def harm(mask):
    return len(mask.attention - FREE.attention) + len(mask.mlp - FREE.mlp)


def test_the_guided_candidate_skips_what_did_no_harm():
    source = random.Random(3)

    def score(mask):
        return 0.9 - 0.1 * harm(mask) + source.uniform(-0.05, 0.05)

    assert run(MaskSearch(whole(LAYERS), GUIDED), score, 101)[-1] == FREE


def test_gains_are_counted_from_what_the_window_began_with():
    """On an easy window everything scores high; that says nothing for what was tried there."""
    search = MaskSearch(whole(LAYERS), GUIDED)
    for window, bonus in enumerate((0.0, 0.5) * 25):
        guided = run(search, lambda mask, bonus=bonus: 0.4 - 0.1 * harm(mask) + bonus, 5, window)
        if search.candidates >= 100:
            break
    assert FREE in guided


def test_a_sub_layer_that_was_never_tried_is_tried_next():
    search = MaskSearch(START, SearchRules(guided_every=2))
    search.look_at(0)
    search.note(search.propose(), 0.5)
    tried = search.propose()
    search.note(tried, 0.9)
    guided = search.propose()
    assert not guided.attention & tried.attention
    assert not guided.mlp & tried.mlp


@pytest.mark.parametrize(("start", "share"), [(whole(2), 0.45), (whole(4), 0.2)])
def test_a_share_that_leaves_nothing_to_skip_is_refused(start, share):
    with pytest.raises(StartError, match=rf"skip_share: {share} of the \d sub-layers .* is none"):
        MaskSearch(start, SearchRules(share))
