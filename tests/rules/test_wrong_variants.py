"""Rules and drafts that are known to be wrong, each caught by the same enumeration."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from services.contract.types import Proposal, SparseRow, VerifyMode
from services.engine.noise import Stream
from services.verifier.rules import Outcome, block, chains
from services.verifier.rules.rows import read_rows
from tests.rules import reference
from tests.rules.enumeration import Case, Round, Span, continued, distance, end_of, round_distance
from tests.rules.worlds import Drafter, World, chain, drafts, sparse

SEEN = 1e-4
EXACT = 1e-12
STANDARD, BLOCK = VerifyMode.STANDARD, VerifyMode.BLOCK
WORLD = World(39)
both_rules = pytest.mark.parametrize("mode", [STANDARD, BLOCK])


CHAIN = chain(3)


def a_round(mode=BLOCK, shape=CHAIN, sizes=(), **changes):
    return Round(WORLD, Drafter.honest(WORLD, **changes), shape, mode, sizes)


# --- of the rules -----------------------------------------------------------------


def test_a_block_rule_that_stops_at_the_first_rejection_is_seen(monkeypatch):
    def first_rejection(h, u):
        return (u < h).long().cumprod(-1).sum(-1)

    monkeypatch.setattr(block, "accepted", first_rejection)
    assert round_distance(a_round()) > SEEN


def test_a_residual_without_the_reach_is_seen(monkeypatch):
    rightly = chains._left_over

    def unscaled(log_p, q, log_scale, accepted):
        return rightly(log_p, q, log_scale * 0, accepted)

    monkeypatch.setattr(chains, "_left_over", unscaled)
    assert round_distance(a_round()) > SEEN


def test_candidates_drawn_without_replacement_but_judged_with_it_are_seen():
    changes = {
        "without_replacement": True,
        "sent": lambda tree: replace(tree, without_replacement=False),
    }
    assert round_distance(a_round(shape=(-1, -1, 0, 0), **changes)) > SEEN


@both_rules
def test_the_downgrade_of_a_whole_block_for_one_bad_row_is_seen(mode):
    def row(text):
        return SparseRow((), ()) if text[:1] == (0,) else sparse(WORLD.draft(text))

    def downgraded(tree):
        whole = read_rows(tree, 3).usable_prefix == len(tree)
        return tree if whole else replace(tree, proposal=Proposal.ONE_HOT, q=None)

    assert round_distance(a_round(mode, row=row)) < EXACT
    assert round_distance(a_round(mode, row=row, sent=downgraded)) > SEEN


# --- of the draft -----------------------------------------------------------------


def only_the_best(law):
    return np.eye(len(law))[int(law.argmax())]


@both_rules
def test_an_argmax_draft_with_a_soft_q_is_seen(mode):
    assert round_distance(a_round(mode, picks=only_the_best)) > SEEN


def test_the_best_children_with_a_soft_q_are_seen():
    shape = (-1, -1, 0, 0)
    assert (
        round_distance(a_round(shape=shape, picks=only_the_best, without_replacement=True)) > SEEN
    )


@both_rules
def test_a_q_of_another_temperature_is_seen(mode):
    def row(text):
        sharper = WORLD.draft(text) ** 1.1
        return sparse(sharper / sharper.sum())

    assert round_distance(a_round(mode, row=row)) > SEEN


def best_two(text):
    law = WORLD.draft(text)
    return np.where(law >= np.sort(law)[-2], law, 0.0)


def best_two_alone(text):
    return best_two(text) / best_two(text).sum()


@both_rules
def test_a_q_cut_after_the_draw_costs_speed_alone(mode):
    # A token outside the row goes by exact match, and one inside has the row's own law.
    one = a_round(mode, row=lambda text: sparse(best_two_alone(text)))
    assert round_distance(one) < EXACT


def by_the_paper(blocks):
    """Token-level verification with q as it was sent, whatever it sums to."""
    outcomes = []
    for each in blocks:
        p, x = each.log_p.exp().numpy(), each.tree.token_ids
        usable = reference.q_rows(each.tree, p)
        u = [each.uniform(Stream.ACCEPT, row, 0) for row in range(len(x))]
        count = reference.standard_accepted(reference.standard_thresholds(p, usable, x), u)
        whole = count == len(x)
        law = p[-1] if whole else reference.residual(p[count], usable[count])
        final = (Stream.RESIDUAL, count)
        outcomes.append(Outcome(tuple(range(count)), whole, torch.from_numpy(law), final))
    return outcomes


def as_sent(tree, p):
    return {
        row: np.bincount(law.token_ids, law.probabilities, len(p[0]))
        for row, law in enumerate(tree.q)
    }


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_a_q_cut_and_not_renormalised_is_seen_by_a_rule_that_trusts_it(monkeypatch):
    monkeypatch.setattr(reference, "q_rows", as_sent)
    cut, alone = (lambda text: sparse(best_two(text))), (lambda text: sparse(best_two_alone(text)))
    one = replace(a_round(STANDARD, law=best_two_alone, row=alone), judge=by_the_paper)
    assert round_distance(one) < EXACT
    not_renormalised = replace(one, drafter=replace(one.drafter, row=cut))
    assert round_distance(not_renormalised) > SEEN
    drawn_from_the_whole = replace(one, drafter=Drafter.honest(WORLD, row=cut))
    assert round_distance(drawn_from_the_whole) > SEEN


@both_rules
def test_a_drawn_token_held_back_for_its_looks_is_seen(mode):
    def looks_bad(text):
        return WORLD.draft(text[:-1])[text[-1]] < 0.4

    assert round_distance(a_round(mode, ends_after=looks_bad)) < EXACT
    assert round_distance(a_round(mode, holds_back=looks_bad)) > SEEN


# --- of the random numbers --------------------------------------------------------


def drawn_within(law, span):
    """The law of a draw by inversion whose uniform lies in a span."""
    edges = np.concatenate([[0.0], np.cumsum(law)])
    inside = np.clip(edges[1:], span.low, span.high) - np.clip(edges[:-1], span.low, span.high)
    return inside / (span.high - span.low)


@both_rules
def test_a_residual_drawn_with_the_number_that_rejected_is_seen(mode):
    def reused(case, outcome):
        stream, row = outcome.final
        span = case.spans[Stream.ACCEPT, row, 0] if stream is Stream.RESIDUAL else Span()
        return drawn_within(outcome.law.numpy(), span)

    assert round_distance(replace(a_round(mode), final_law=reused)) > SEEN


@both_rules
def test_an_independent_bonus_in_place_of_the_tails_residual_is_seen(mode):
    def bonus_first(case, outcome):
        # Drawn when the first block was accepted; the tail survived beside it.
        spoilt = case.start and outcome.final == (Stream.RESIDUAL, 0)
        return WORLD.target(case.start) if spoilt else outcome.law.numpy()

    one = a_round(mode, sizes=(1,))
    assert round_distance(one) < EXACT
    assert round_distance(replace(one, final_law=bonus_first)) > SEEN


def rounds_by_position(one, length, *, reuse):
    """The law of a text of many rounds whose ACCEPT numbers hang on the position alone.

    With `reuse`, what a round has learnt of the number at a position beyond its text
    still holds in the next round.
    """
    waiting = Counter({((), ()): 1.0})
    done = Counter()
    while waiting:
        (text, known), weight = waiting.popitem()
        if len(text) >= length:
            done[text[:length]] += weight
            continue
        spans = {(Stream.ACCEPT, place - len(text), 0): span for place, span in known}
        cases = [
            Case(weight * draft.weight, text, draft.tree, spans=spans)
            for draft in drafts(one.drafter, text, one.shape)
        ]
        for case, outcome in one.judged(cases):
            at = end_of(case, outcome)
            beyond = tuple(
                (len(text) + row, Span(span.low, span.high))
                for (_, row, _), span in sorted(case.spans.items())
                if reuse and len(text) + row > len(at)
            )
            for token, mass in enumerate(outcome.law.tolist()):
                if mass > 0:
                    waiting[(*at, token), beyond] += case.weight * mass
    return continued(one.world, done, length)


def test_numbers_keyed_by_position_across_blocks_are_seen():
    one = a_round(BLOCK, shape=chain(2))
    assert distance(rounds_by_position(one, 3, reuse=False), WORLD) < EXACT
    assert distance(rounds_by_position(one, 3, reuse=True), WORLD) > SEEN


def test_token_level_verification_forgives_numbers_keyed_by_position():
    one = a_round(STANDARD, shape=chain(2))
    assert distance(rounds_by_position(one, 3, reuse=True), WORLD) < EXACT
