"""Outputs of a form while processes die: the real round machine, rows under the real mask.

As in `test_text_law` and `test_crash_points`, with a target that keeps to a form. Every
session that is opened anew follows it again through what is committed.
"""

from __future__ import annotations

import pytest
from orchestrator.core.pacing import Fixed

from services.contract.types import DraftTree, Proposal, Role
from tests.proof.formed import MARKED, SHORT, FormedWorld, Laws, exact_laws
from tests.proof.laws import row
from tests.proof.machine import check_every_moment, cluster, error
from tests.proof.real_rules import RealRule
from tests.proof.setups import MODES, Habits, Restless
from tests.proof.worlds import kill, restart

EXACT, SEEN = 1e-12, 1e-3
STRIKES = {
    "the verifier dies": lambda world: kill(world, Role.VERIFIER),
    "the drafter dies": lambda world: kill(world, Role.DRAFTER),
    "the orchestrator dies": restart,
}


@pytest.fixture(autouse=True)
def in_float64():
    with exact_laws():
        yield


LANGUAGES = pytest.mark.parametrize("language", [SHORT, MARKED], ids=["at once", "marked"])


def habits(*, language=SHORT, drafter_knows=True, verifier_knows=True):
    """Workers that keep to the form, as far as they know it; what must come out is by hand."""
    world = FormedWorld(language)
    told = Laws(world, world.raw.target, knows=verifier_knows).law
    drafted = Laws(world, world.raw.draft, knows=drafter_knows).law

    def tree(text, token):
        return DraftTree((token,), None, (row(tuple(drafted(text).tolist())),), Proposal.SAMPLED)

    def by_hand(text):
        return tuple(world.target(text).tolist())

    rule = RealRule(by_hand, lambda text: tuple(told(text).tolist()))
    return Habits(rule, lambda text: tuple(drafted(text).tolist()), tree, target=by_hand)


def worlds(mode, schedule, policy, max_tokens=4, **known):
    sizes = {"max_tokens": max_tokens, "window": policy.window, "stops": (SHORT.end,)}
    return cluster(mode, habits(**known), schedule, policy, **sizes)


@MODES
@pytest.mark.parametrize("knows", [True, False], ids=["knowing", "not knowing"])
@pytest.mark.parametrize("policy", [Restless(3), Fixed(3)], ids=["restless", "fixed"])
@pytest.mark.parametrize("schedule", ["ahead", "slow verifier", "chained"])
@LANGUAGES
def test_the_text_has_the_law_of_plain_constrained_decoding(
    language, mode, schedule, policy, knows
):
    own = worlds(mode, schedule, policy, language=language, drafter_knows=knows)
    assert error(own) < EXACT


@MODES
@pytest.mark.parametrize("policy", [Restless(2), Fixed(2)], ids=["restless", "fixed"])
@LANGUAGES
def test_workers_that_die_at_any_time_leave_the_law(language, mode, policy):
    assert error(worlds(mode, "mortal", policy, max_tokens=3, language=language)) < EXACT


@MODES
@LANGUAGES
def test_at_whatever_moment_a_process_dies_the_law_stays(language, mode):
    """In free text and in the form behind it, too."""
    own = worlds(mode, "chained", Restless(2), max_tokens=3, language=language)
    check_every_moment(own, STRIKES, EXACT)


@MODES
@LANGUAGES
def test_a_verifier_that_does_not_know_the_form_is_seen(language, mode):
    own = worlds(mode, "chained", Restless(3), language=language, verifier_knows=False)
    assert error(own) > SEEN
