from dataclasses import replace

import numpy as np
import pytest

from services.contract.types import SparseRow, VerifyMode
from tests.rules.enumeration import Round, round_distance
from tests.rules.worlds import Drafter, World, chain, sparse

EXACT = 1e-12
WORLDS = [World(30), World(31, holes=True)]
both_rules = pytest.mark.parametrize("mode", [VerifyMode.STANDARD, VerifyMode.BLOCK])


def missing(row):
    return SparseRow((), ())


def bad_sum(row):
    return replace(row, probabilities=tuple(1.01 * mass for mass in row.probabilities))


def not_a_number(row):
    return replace(row, probabilities=(float("nan"), *row.probabilities[1:]))


def outside_the_vocabulary(row):
    return replace(row, token_ids=(*row.token_ids[:-1], 3))


def best_two_not_renormalised(row):
    two = np.argsort(row.probabilities)[-2:].tolist()
    return SparseRow(
        tuple(row.token_ids[i] for i in two), tuple(0.99 * row.probabilities[i] for i in two)
    )


def breaking(world, how, when):
    """An honest drafter whose row behind some texts is spoilt."""

    def row(text):
        return how(sparse(world.draft(text))) if when(text) else sparse(world.draft(text))

    return Drafter.honest(world, row=row)


@both_rules
@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize(
    "how", [missing, bad_sum, not_a_number, outside_the_vocabulary, best_two_not_renormalised]
)
def test_a_bad_row_leaves_the_law_alone(how, position, mode):
    for world in WORLDS:
        drafter = breaking(world, how, lambda text: len(text) == position)
        assert round_distance(Round(world, drafter, chain(3), mode)) < EXACT


@both_rules
@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_row_that_cannot_have_drawn_its_token_leaves_the_law_alone(position, mode):
    for world in WORLDS:
        # Token 2 is never drawn behind such a text, and the row sent has no other.
        def law(text, world=world):
            own = world.draft(text) * [1, 1, len(text) != position]
            return own / own.sum() if own.any() else np.array([0.5, 0.5, 0.0])

        def row(text, law=law):
            return SparseRow((2,), (1.0,)) if len(text) == position else sparse(law(text))

        drafter = Drafter(law, row)
        assert round_distance(Round(world, drafter, chain(3), mode)) < EXACT


@both_rules
def test_rows_that_break_by_the_text_before_them_leave_the_law_alone(mode):
    for world in WORLDS:
        drafter = breaking(world, missing, lambda text: len(text) > 0 and text[0] == 1)
        for sizes in ((), (1, 2), (2, 1)):
            assert round_distance(Round(world, drafter, chain(3), mode, sizes)) < EXACT


@pytest.mark.parametrize("without_replacement", [False, True])
@pytest.mark.parametrize("shape", [(-1, -1, 0, 0), (-1, -1, 0, 1, 2), (-1, 0, -1, 1)])
def test_bad_rows_in_a_tree_leave_the_law_alone(shape, without_replacement):
    for world in WORLDS:
        for when in (lambda text: text == (), lambda text: text[:1] == (1,)):
            drafter = breaking(world, missing, when)
            drafter = replace(drafter, without_replacement=without_replacement)
            one = Round(world, drafter, shape, VerifyMode.BLOCK)
            assert round_distance(one) < EXACT
