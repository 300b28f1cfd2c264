"""Ways to go wrong around right rules: the figures that pass for ours must tell each of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from orchestrator.core import sending
from orchestrator.core.events import VerdictArrived
from orchestrator.core.pacing import Fixed

from services.contract.types import Role
from tests.proof.laws import Fate, downgraded, is_bad
from tests.proof.machine import cluster, error
from tests.proof.real_rules import judged
from tests.proof.setups import MODES, Habits, unusable_after_two
from tests.proof.worlds import kill

REAL, EXACT, WRONG = Habits(judged), 1e-12, 1e-3


@MODES
def test_a_verdict_lost_for_what_it_says_is_seen(mode):
    worlds = cluster(mode, REAL, "chained")

    def whole(world):
        heard = [event.verdict for event in world.on("v>") if isinstance(event, VerdictArrived)]
        return any(verdict.all_accepted and verdict.accepted for verdict in heard)

    law = worlds.struck(whole, lambda world: kill(world, Role.VERIFIER))
    assert worlds.distance(law) > WRONG


@MODES
def test_choosing_between_an_abandoned_verdict_and_its_retry_is_seen(mode):
    def better(text, tree, mode):
        for one, other in product(judged(text, tree, mode), repeat=2):
            best = max(one, other, key=lambda fate: fate.accepted)
            yield Fate(one.weight * other.weight, best.accepted, best.all_accepted, best.law)

    assert error(cluster(mode, Habits(better))) > WRONG


def forget_unmatched_bonus(world, event):
    """Keep the tail whatever the bonus was, as if none had been drawn."""
    tail = world.state.tail
    if not isinstance(event, VerdictArrived) or not tail or not event.verdict.all_accepted:
        return world, event
    verdict, own = event.verdict, world.verifier
    if verdict.accepted == len(verdict.token_ids) or verdict.accepted == 0:
        return world, event
    if verdict.token_ids[-1] == tail[0].tree.token_ids[0]:
        return world, event
    verdict = verdict._replace(token_ids=verdict.token_ids[:-1])
    own = replace(own, text=own.text[:-1], last=verdict)
    return replace(world, verifier=own), replace(event, verdict=verdict)


@MODES
def test_an_independent_bonus_beside_a_surviving_tail_is_seen(mode, monkeypatch):
    monkeypatch.setattr(sending, "_wants_bonus", lambda *_: True)
    right = cluster(mode, REAL, "slow verifier", max_in_flight=1, max_tokens=4, window=3)
    assert error(right) < EXACT, "a tail that starts with the bonus may stay"
    habits = Habits(judged, deliver=forget_unmatched_bonus)
    wrong = cluster(mode, habits, "slow verifier", max_in_flight=1, max_tokens=4, window=3)
    assert error(wrong) > WRONG


@MODES
def test_a_drafter_that_holds_tokens_back_for_what_they_are_is_seen(mode):
    habits = Habits(judged, holds=lambda token: token == 0)
    assert error(cluster(mode, habits, "ahead")) > WRONG


@MODES
@pytest.mark.parametrize("role", [Role.VERIFIER, Role.DRAFTER], ids=lambda role: role.name)
def test_a_death_while_drafts_end_with_certain_tokens_is_seen(mode, role):
    """What was not judged by then is drawn again: the tokens that end drafts come too often."""
    habits = Habits(judged, ends=lambda token: token == 0)
    worlds = cluster(mode, habits, "chained", Fixed(3), max_tokens=4, window=3)
    laws = worlds.struck_at_each_slot(lambda world: kill(world, role))
    assert max(worlds.distance(law) for law in laws) > WRONG


@MODES
def test_downgrading_the_whole_block_for_one_bad_row_is_seen(mode):
    def rule(text, tree, mode):
        if any(is_bad(row) for row in tree.q or ()):
            return downgraded(text, tree)
        return judged(text, tree, mode)

    habits = Habits(rule, tree=unusable_after_two)
    assert error(cluster(mode, habits, max_tokens=4, window=3)) > WRONG
