"""Ways to go wrong around right rules: the figures that pass for ours must tell each of them.

L1 to L6 are the rules of docs/wire.md, *The law*.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from services.contract.frames import StepRow
from services.contract.types import Role
from services.drafter.hypotheses.session import HypothesisSession
from services.drafter.protocol import Proposed
from services.verifier.rules import rows
from services.verifier.running import deciding
from services.verifier.running.mailbox import NO_TREE, Mailbox
from tests.proof.machine import cluster, error
from tests.proof.setups import (
    MODES,
    STANDARD,
    Habits,
    Sparing,
    real,
    sampled,
    trees_of,
    unusable_after_two,
)
from tests.proof.worlds import kill
from tests.services.loop_law import frozen, thawed

EXACT, WRONG = 1e-12, 1e-3

pytestmark = pytest.mark.usefixtures("in_float64")


# --- L1: the last row -------------------------------------------------------------


def own_token_dropped(stepping, text, doing):
    """Keep the draft whatever the target's own token was, as if none had been drawn."""
    for weight, tokens, box in stepping.outcomes(text, doing):
        held = thawed(Mailbox, doing.box)
        for draft in doing.came:
            held.put(draft, stepping.session(text).output, 0.0)
        said = tokens[:-1]
        level = held.next_level(said)
        if said and level.token_ids and level.token_ids != tokens[-1:]:
            held.follow(said)
            yield weight, said, frozen(held)
        else:
            yield weight, tokens, box


@MODES
def test_an_independent_bonus_beside_a_surviving_tail_is_seen(mode, monkeypatch):
    monkeypatch.setattr(deciding, "_late", lambda turn, outcome: NO_TREE)
    right = cluster(Habits(real(mode)), "chained", Sparing())
    assert error(right) < EXACT, "a tail that starts with the bonus may stay"
    wrong = Habits(real(mode), judged=own_token_dropped)
    assert error(cluster(wrong, "chained", Sparing())) > WRONG


@MODES
def test_a_late_token_that_is_judged_for_what_it_is_is_seen(mode, monkeypatch):
    rightly = deciding._late

    def picky(turn, outcome):
        late = rightly(turn, outcome)
        return NO_TREE if 0 in late.token_ids else late

    monkeypatch.setattr(deciding, "_late", picky)
    assert error(cluster(Habits(real(mode)), "late drafts", Sparing())) > WRONG


def test_late_siblings_of_which_the_likeliest_alone_is_judged_are_seen(monkeypatch):
    rightly = deciding._late

    def first(turn, outcome):
        late = rightly(turn, outcome)
        if len(late) < 2:
            return late
        best = max(late.token_ids)
        return replace(late, token_ids=(best,), parents=None)

    habits = Habits(real(STANDARD), trees=trees_of((-1, -1), without_replacement=True))
    monkeypatch.setattr(deciding, "_late", first)
    assert error(cluster(habits, "late drafts", num_candidates=2)) > WRONG


# --- L2: what is verified ---------------------------------------------------------


def cut_by_its_token(stepping, text, doing):
    """Leave the last token out of the step, and drop it, for what it is."""
    box = thawed(Mailbox, doing.box)
    if doing.size and box.tokens[doing.size - 1] == 0:
        box.clear()
        doing = doing._replace(size=0, box=frozen(box), came=())
    return stepping.outcomes(text, doing)


@MODES
def test_a_step_that_leaves_a_token_out_for_what_it_is_is_seen(mode):
    assert error(cluster(Habits(real(mode), judged=cut_by_its_token), "in turns")) > WRONG


# --- L3: when a drafter sends -----------------------------------------------------


@MODES
def test_a_drafter_that_holds_tokens_back_for_what_they_are_is_seen(mode):
    habits = Habits(real(mode), holds=lambda token: token == 0)
    assert error(cluster(habits, "in turns")) > WRONG


# --- L4: a draft is of its text ---------------------------------------------------------


@MODES
def test_a_drafter_that_goes_on_with_its_tail_beside_another_token_is_seen(mode, monkeypatch):
    rightly = HypothesisSession._adopt

    def kept(session, tokens):
        tail = session.text[session.prompt_length + session.committed_length :]
        stayed = rightly(session, tokens)
        if not session.tail_length:
            for token in tail[len(tokens) :]:
                text = tuple(session.text[session.prompt_length :])
                session.absorb(Proposed(sampled(text, token)))
        return stayed

    monkeypatch.setattr(HypothesisSession, "_adopt", kept)
    habits = Habits(real(mode, max_tokens=4))
    assert error(cluster(habits, "late drafts", window=3)) > WRONG


# --- L5: going back ---------------------------------------------------------------


@MODES
def test_a_verdict_lost_for_what_it_says_is_seen(mode):
    worlds = cluster(Habits(real(mode)), "chained")

    def long(world):
        heard = [said.what for said in world.on("v>") if isinstance(said.what, StepRow)]
        return any(len(row.tokens) > 1 for row in heard)

    law = worlds.struck(long, lambda world: kill(world, Role.VERIFIER))
    assert worlds.distance(law) > WRONG


@MODES
def test_choosing_between_an_abandoned_verdict_and_its_retry_is_seen(mode):
    def better(stepping, text, doing):
        for one, other in product(stepping.outcomes(text, doing), repeat=2):
            weight, tokens, box = max(one, other, key=lambda outcome: len(outcome[1]))
            del weight
            yield one[0] * other[0], tokens, box

    assert error(cluster(Habits(real(mode), judged=better))) > WRONG


def cut_by_credit(stepping, text, doing):
    """Cut what was judged behind one token; what was accepted is still a draft, and judged anew."""
    for weight, tokens, box in stepping.outcomes(text, doing):
        if len(tokens) < 2:
            yield weight, tokens, box
            continue
        held = thawed(Mailbox, doing.box)
        for draft in doing.came:
            held.put(draft, stepping.session(text).output, 0.0)
        accepted = held.tokens[:2] == [*tokens[:2]]
        held.follow(tokens[:1])
        if not accepted:
            held.clear()
        yield weight, tokens[:1], frozen(held)


@MODES
def test_credit_that_cuts_what_was_judged_is_seen(mode):
    habits = Habits(real(mode, max_tokens=4), judged=cut_by_credit)
    assert error(cluster(habits, "chained", window=3)) > WRONG


# --- L6: several drafts -----------------------------------------------------------


@MODES
def test_a_draft_that_stays_for_what_it_says_where_a_newer_one_comes_is_seen(mode, monkeypatch):
    rightly = Mailbox.put

    def put(mailbox, draft, output, now):
        newer = mailbox.tokens and draft.name > mailbox.name
        if newer and mailbox.tokens[0] == 2:
            return False
        return rightly(mailbox, draft, output, now)

    monkeypatch.setattr(Mailbox, "put", put)
    assert error(cluster(Habits(real(mode)), "replaced")) > WRONG


# --- rows of q --------------------------------------------------------------------


@MODES
def test_downgrading_the_whole_block_for_one_bad_row_is_seen(mode, monkeypatch):
    rightly = rows.read_rows

    def whole(tree, vocab):
        read = rightly(tree, vocab)
        return replace(read, usable={}) if read.bad else read

    monkeypatch.setattr(rows, "read_rows", whole)
    habits = Habits(real(mode, max_tokens=4), tree=unusable_after_two)
    assert error(cluster(habits, "chained", window=3)) > WRONG
