"""The search for a mask, on costs that are functions: no model, no clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.contract.errors import StartError
from services.engine.skip_mask import SkipMask, every_second, middle_half, whole
from services.training.skip_mask.figures import MaskStats
from services.training.skip_mask.search import (
    Search,
    Trial,
    best_so_far,
    opening_masks,
    require_plan,
)
from tests.training.skip_mask.kit import costing

LAYERS = 6
PLAN = {"tokens": 32, "seed": 0}
GOOD = SkipMask.of(LAYERS, attention=[1, 2, 4], mlp=[3])


def far_from_good(mask: SkipMask) -> MaskStats:
    """The cost is least for one mask, and grows with every choice that differs."""
    wrong = len(mask.attention ^ GOOD.attention) + len(mask.mlp ^ GOOD.mlp)
    return costing(0.5 + 0.1 * wrong)


def run(search: Search, count: int) -> list[Trial]:
    return list(search.run(count, far_from_good))


def test_it_begins_with_what_one_would_try_by_hand() -> None:
    masks = opening_masks(8, seed=0)
    assert masks[:3] == [whole(8), every_second(8), middle_half(8)]
    assert len(set(masks[3:])) > 8
    shares = [mask.share for mask in masks[3:]]
    assert min(shares) < 0.25 < 0.4 < max(shares)


def test_it_finds_a_better_mask_than_it_began_with() -> None:
    trials = run(Search(LAYERS, 0, PLAN), 90)
    openings = [trial.figures.cost for trial in trials[:15]]
    assert [trial.mask for trial in trials[:15]] == opening_masks(LAYERS, 0)
    assert min(trial.figures.cost for trial in trials) < min(openings) - 0.15


def test_the_best_masks_are_named_once_each_the_best_first() -> None:
    search = Search(LAYERS, 0, PLAN)
    run(search, 40)
    best = search.best(4)
    assert len(set(best)) == 4
    costs = [far_from_good(mask).cost for mask in best]
    assert costs == sorted(costs)
    assert costs[0] == min(trial.figures.cost for trial in search.trials)


def test_the_seed_decides_what_is_tried() -> None:
    first, again, other = (run(Search(LAYERS, seed, PLAN), 25) for seed in (3, 3, 4))
    assert first == again
    assert first[15:] != other[15:]


@pytest.mark.parametrize("stopped_after", [2, 20])
def test_a_search_that_was_stopped_ends_as_one_that_was_not(tmp_path, stopped_after) -> None:
    whole_run = run(Search(LAYERS, 0, PLAN), 25)
    journal = tmp_path / "search.journal"
    run(Search(LAYERS, 0, PLAN, journal), stopped_after)
    resumed = Search(LAYERS, 0, PLAN, journal)
    assert resumed.trials == whole_run[:stopped_after]
    assert run(resumed, 25) == whole_run[stopped_after:]
    assert Search(LAYERS, 0, PLAN, journal).trials == whole_run


def test_a_trial_that_fails_leaves_no_trace(tmp_path: Path) -> None:
    journal = tmp_path / "search.journal"
    search = Search(LAYERS, 0, PLAN, journal)
    run(search, 17)

    def fail(mask: SkipMask) -> MaskStats:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(search.run(25, fail))
    assert run(Search(LAYERS, 0, PLAN, journal), 25) == run(Search(LAYERS, 0, PLAN), 25)[17:]


def test_a_journal_of_another_search_is_refused_with_what_differs(tmp_path: Path) -> None:
    journal = tmp_path / "search.journal"
    require_plan(journal, PLAN)
    run(Search(LAYERS, 0, PLAN, journal), 1)
    require_plan(journal, PLAN)
    with pytest.raises(StartError, match="belongs to another search: tokens was 32, not 64"):
        require_plan(journal, {**PLAN, "tokens": 64})


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("buy milk\n")
    with pytest.raises(StartError, match="is there, but is no search's"):
        require_plan(path, PLAN)
    assert path.read_text() == "buy milk\n"


def test_the_best_so_far_never_grows() -> None:
    assert best_so_far([3.0, 2.0, 2.5, 1.0]) == [3.0, 2.0, 2.0, 1.0]
