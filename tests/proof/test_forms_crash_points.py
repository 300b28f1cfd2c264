"""Outputs of a form while processes die: the real machine and mailbox, rows under the real mask.

As in `test_text_law` and `test_crash_points`, with a target that keeps to a form. Every
session that is opened anew follows it again through what is committed.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.contract.types import DraftTree, Proposal, Role
from tests.proof.formed import MARKED, SHORT, FormedWorld, Laws
from tests.proof.laws import row
from tests.proof.machine import check_every_moment, cluster, error
from tests.proof.setups import MODES, Fixed, Habits, Restless
from tests.proof.stepping import Stepping
from tests.proof.worlds import kill, restart

EXACT, SEEN = 1e-12, 1e-3
STRIKES = {
    "the verifier dies": lambda world: kill(world, Role.VERIFIER),
    "the drafter dies": lambda world: kill(world, Role.DRAFTER),
    "the orchestrator dies": restart,
}


pytestmark = pytest.mark.usefixtures("in_float64")
LANGUAGES = pytest.mark.parametrize("language", [SHORT, MARKED], ids=["at once", "marked"])


def habits(mode, *, max_tokens=4, language=SHORT, drafter_knows=True, verifier_knows=True):
    """Workers that keep to the form, as far as they know it; what must come out is by hand."""
    world = FormedWorld(language)
    drafted = Laws(world, world.raw.draft, knows=drafter_knows).law
    sampling = replace(world.sampling, max_tokens=max_tokens)
    raw = world.raw.target

    def tree(text, token):
        return DraftTree((token,), None, (row(tuple(drafted(text).tolist())),), Proposal.SAMPLED)

    def by_hand(text):
        return tuple(world.target(text).tolist())

    if verifier_knows:
        stepping = Stepping(mode, sampling, by_hand, raw, language.structures)
    else:
        stepping = Stepping(mode, replace(sampling, response_format=None), raw, raw)
    return Habits(stepping, lambda text: tuple(drafted(text).tolist()), tree, promised=by_hand)


def worlds(mode, schedule, policy, window=3, **known):
    return cluster(habits(mode, **known), schedule, policy, window=window)


@MODES
@pytest.mark.parametrize("knows", [True, False], ids=["knowing", "not knowing"])
@pytest.mark.parametrize("policy", [Restless(), Fixed(3)], ids=["restless", "fixed"])
@pytest.mark.parametrize("schedule", ["ahead", "slow verifier", "chained"])
@LANGUAGES
def test_the_text_has_the_law_of_plain_constrained_decoding(
    language, mode, schedule, policy, knows
):
    own = worlds(mode, schedule, policy, language=language, drafter_knows=knows)
    assert error(own) < EXACT


@MODES
@pytest.mark.parametrize("policy", [Restless(), Fixed(2)], ids=["restless", "fixed"])
@LANGUAGES
def test_workers_that_die_at_any_time_leave_the_law(language, mode, policy):
    own = worlds(mode, "mortal", policy, window=2, max_tokens=3, language=language)
    assert error(own) < EXACT


@MODES
@LANGUAGES
def test_at_whatever_moment_a_process_dies_the_law_stays(language, mode):
    """In free text and in the form behind it, too."""
    own = worlds(mode, "chained", Restless(), window=2, max_tokens=3, language=language)
    check_every_moment(own, STRIKES, EXACT)


@MODES
@LANGUAGES
def test_a_verifier_that_does_not_know_the_form_is_seen(language, mode):
    own = worlds(mode, "chained", Restless(), language=language, verifier_knows=False)
    assert error(own) > SEEN
