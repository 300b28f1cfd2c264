"""Outputs of a form under every rule: their law is that of plain constrained decoding, exactly.

Whole outputs are enumerated (tests.proof.formed_rounds), the end included, with drafters that know
the form and such that do not. Known wrong ways fail the same figures.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from services.contract.types import DraftTree, VerifyMode
from services.engine.marker import FreeText, Marker
from services.engine.noise import exponentials
from services.engine.structure import Matcher
from services.verifier import judging
from services.verifier.running.deciding import decide_turns
from tests.proof import formed_rounds as kit
from tests.proof.formed import LANGUAGES, FormedWorld, Laws, drafter
from tests.proof.setups import MODES, STANDARD
from tests.rules.worlds import chain, sparse

EXACT, SEEN = 1e-12, 1e-4
TREES = {"siblings": (-1, -1, -1), "a comb": (-1, -1, 0, 0), "two branches": (-1, 0, -1, 2)}
SMALL = ("siblings",)
WIDE = ("regex", "behind tokens")
"""Forms of too many texts for larger trees."""
FORMS = pytest.mark.parametrize("form", LANGUAGES)


pytestmark = pytest.mark.usefixtures("in_float64")


def distance(form, shape, mode=STANDARD, *, knows=True, sizes=(), reopened=False, **sampling):
    world = FormedWorld(LANGUAGES[form], **sampling)
    own = drafter(world, knows=knows)
    return kit.Speculated(world, own, shape, mode, sizes, reopened).distance()


@FORMS
def test_the_matcher_allows_what_the_list_of_words_does(form):
    language, going, seen = LANGUAGES[form], [()], 0
    while going:
        text = going.pop()
        matcher = language.structures.matcher(language.form)
        assert matcher.extend(text)
        mask, allowed = matcher.mask(()), language.allowed(text)
        if allowed is None:
            assert mask is None
            allowed = np.ones(language.end + 1, dtype=bool)
        assert (mask is None) or (mask == allowed).all()
        seen += 1
        if len(text) + 1 < language.max_tokens:
            inside = allowed[:-1].nonzero()[0].tolist()
            going += [(*text, token) for token in inside]
    assert seen >= 10


@FORMS
def test_outputs_end_in_the_form_or_at_the_most_tokens(form):
    world = FormedWorld(LANGUAGES[form])
    outputs, end = world.whole_outputs(), LANGUAGES[form].end
    assert sum(outputs.values()) == pytest.approx(1.0, abs=EXACT)
    assert 0.2 < sum(mass for text, mass in outputs.items() if text[-1] == end) <= 1


@FORMS
@MODES
def test_chains_leave_the_law_of_plain_constrained_decoding(form, mode):
    assert distance(form, chain(2), mode) < EXACT


@pytest.mark.parametrize("form", ["choice", "regex", "behind a text"])
@MODES
def test_chains_that_leave_the_form_change_nothing(form, mode):
    assert distance(form, chain(2), mode, knows=False) < EXACT


@MODES
@pytest.mark.parametrize(
    ("form", "sizes"),
    [
        ("regex", (1,)),
        ("choice", (1,)),
        ("choice", (2,)),
        ("choice", (1, 1)),
        ("json_schema", (2,)),
        ("behind a text", (1,)),
        ("behind a text", (2,)),
        ("behind tokens", (1, 1)),
    ],
)
def test_chained_blocks_leave_the_law_of_plain_constrained_decoding(form, mode, sizes):
    assert distance(form, chain(3), mode, sizes=sizes) < EXACT


@pytest.mark.parametrize("form", ["choice", "behind a text"])
@MODES
def test_chained_blocks_that_leave_the_form_change_nothing(form, mode):
    assert distance(form, chain(3), mode, knows=False, sizes=(1,)) < EXACT


@pytest.mark.parametrize(
    ("form", "shape"),
    [(form, shape) for form in LANGUAGES for shape in TREES if form not in WIDE or shape in SMALL],
)
def test_trees_leave_the_law_of_plain_constrained_decoding(form, shape):
    world, shape = FormedWorld(LANGUAGES[form]), TREES[shape]
    for alone in (False, True):
        own = drafter(world, knows=True, without_replacement=alone)
        assert kit.Speculated(world, own, shape, STANDARD).distance() < EXACT


@pytest.mark.parametrize("form", ["choice", "behind a text"])
def test_trees_that_leave_the_form_change_nothing(form):
    assert distance(form, (-1, -1, 0), knows=False) < EXACT


@FORMS
@MODES
def test_a_session_that_is_opened_anew_before_each_round_has_the_same_law(form, mode):
    assert distance(form, chain(2), mode, reopened=True) < EXACT


@FORMS
@MODES
@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 0.7, "top_k": 2}, {"temperature": 1.4, "min_tokens": 3}],
    ids=["top_k", "min_tokens"],
)
def test_cuts_come_after_the_mask_and_a_finished_form_before_min_tokens(form, mode, sampling):
    assert distance(form, chain(2), mode, **sampling) < EXACT


# --- by exact match ------------------------------------------------------------------


def plain_output(world, mode, seed):
    """Token by token by hand: the best that is allowed, or the winner of the race."""
    text = ()
    while not world.ended(text):
        with np.errstate(divide="ignore"):
            scores = np.log(world.target(text))
        if mode is VerifyMode.COUPLED:
            scores -= np.log(exponentials(seed, len(text), world.vocab).double().numpy())
        text = (*text, int(scores.argmax()))
    return text


def random_draft(rng, laws, text):
    """A chain or a tree of what a draft model may say."""
    shape = rng.choice([chain(3), chain(1), *TREES.values()])
    tokens, at = [], [text]
    for parent in shape:
        own = at[parent + 1]
        tokens.append(rng.choices(range(len(laws.law(own))), laws.law(own))[0])
        at.append((*own, tokens[-1]))
    return DraftTree(tuple(tokens), None if shape in (chain(3), chain(1)) else shape)


def round_of(world, lives, rng, laws):
    """Every session's next step, with all or some of a draft, new or left; some somewhere else."""
    turns = []
    for at, session in enumerate(lives):
        if rng.random() < 0.2:
            opening = session.opening
            session = kit.opened(world, opening.mode, kit.output_of(session), opening.seed)
        if not len(session.mailbox) or rng.random() < 0.5:
            kit.offered(session, random_draft(rng, laws, kit.output_of(session)))
        size = rng.choice([len(session.mailbox), rng.randrange(len(session.mailbox) + 1)])
        turns.append((at, kit.forwarded(world, session, size)))
    decisions = decide_turns([turn for _, turn in turns])
    for (at, turn), decision in zip(turns, decisions, strict=True):
        lives[at] = kit.concluded(turn, decision)
    return sum(len(decision.path) for decision in decisions)


def outputs_in_rounds(world, mode, seeds, *, knows):
    """What each seed gives, and how many drafted tokens were accepted on the way."""
    rng, laws = random.Random(7), Laws(world, world.raw.draft, knows=knows)
    lives, accepted = [kit.opened(world, mode, seed=seed) for seed in seeds], 0
    while going := [i for i in seeds if not world.ended(kit.output_of(lives[i]))]:
        turn = [lives[i] for i in going]
        accepted += round_of(world, turn, rng, laws)
        for i, life in zip(going, turn, strict=True):
            lives[i] = life
    outputs = [kit.output_of(own) for own in lives]
    return [text[: world.ended(text)] for text in outputs], accepted


SEEDS = range(60)
EXACTLY = pytest.mark.parametrize(
    "mode", [VerifyMode.COUPLED, VerifyMode.GREEDY], ids=lambda mode: mode.name
)


@FORMS
@EXACTLY
@pytest.mark.parametrize("knows", [True, False], ids=["knowing", "not knowing"])
def test_the_text_of_a_seed_is_that_of_plain_constrained_decoding(form, mode, knows):
    world = FormedWorld(LANGUAGES[form])
    outputs, accepted = outputs_in_rounds(world, mode, SEEDS, knows=knows)
    assert outputs == [plain_output(world, mode, seed) for seed in SEEDS]
    assert accepted > 20


# --- ways to go wrong ----------------------------------------------------------------


def unmasked(world):
    """What the draft model says where nobody tells it of the form."""
    return Laws(world, world.raw.draft, knows=False).law


@FORMS
@MODES
def test_a_q_without_the_mask_that_its_tokens_were_drawn_under_is_seen(form, mode):
    world = FormedWorld(LANGUAGES[form])
    free = unmasked(world)
    wrong = drafter(world, knows=True, row=lambda text: sparse(free(text)))
    assert kit.Speculated(world, wrong, chain(2), mode).distance() > SEEN


@MODES
def test_a_q_with_a_mask_that_its_tokens_were_not_drawn_under_costs_speed_alone(mode):
    """What the form forbids is outside its row and goes by exact match."""
    world = FormedWorld(LANGUAGES["choice"])
    wrong = replace(drafter(world, knows=True), law=unmasked(world))
    assert kit.Speculated(world, wrong, chain(2), mode).distance() < EXACT


@FORMS
@MODES
def test_one_mask_for_all_rows_of_a_block_is_seen(form, mode, monkeypatch):
    monkeypatch.setattr(judging, "paths", lambda tree: [()] * (1 + len(tree)))
    monkeypatch.setattr(Matcher, "extend", lambda self, tokens: True)
    assert distance(form, chain(2), mode) > SEEN


def stays(self, tokens):
    """A matcher that stands where the last path ended, whatever was accepted of it."""
    self._output += tokens
    self._path = []
    return True


@MODES
def test_a_matcher_that_is_not_taken_back_after_a_rejection_is_seen(mode, monkeypatch):
    monkeypatch.setattr(Matcher, "extend", stays)
    assert distance("regex", chain(2), mode) > SEEN


MARKED = pytest.mark.parametrize("form", ["behind a text", "behind tokens"])


@MARKED
@MODES
def test_a_form_that_begins_with_the_output_in_place_of_its_marker_is_seen(form, mode, monkeypatch):
    monkeypatch.setattr(FreeText, "complete", True)
    monkeypatch.setattr(FreeText, "take", lambda self, tokens: 0)
    assert distance(form, chain(2), mode) > SEEN


@MARKED
@MODES
def test_free_text_that_is_not_taken_back_with_a_draft_is_seen(form, mode, monkeypatch):
    monkeypatch.setattr(FreeText, "back", lambda self, tokens: None)
    monkeypatch.setattr(Matcher, "extend", lambda self, tokens: bool(self._take(tokens)) or True)
    assert distance(form, chain(2), mode) > SEEN


@MODES
def test_a_marker_that_is_looked_for_in_each_token_alone_is_seen(mode, monkeypatch):
    plain = Marker.after
    monkeypatch.setattr(Marker, "after", lambda self, _, token: plain(self, 0, token))
    assert distance("behind a text", chain(2), mode) > SEEN


@EXACTLY
def test_a_matcher_that_is_not_taken_back_gives_other_texts(mode, monkeypatch):
    world = FormedWorld(LANGUAGES["json_schema"])
    plain = [plain_output(world, mode, seed) for seed in SEEDS]
    monkeypatch.setattr(Matcher, "extend", stays)
    assert outputs_in_rounds(world, mode, SEEDS, knows=True)[0] != plain


@MODES
def test_a_verifier_that_does_not_mask_at_all_is_seen(mode, monkeypatch):
    monkeypatch.setattr(Matcher, "mask", lambda self, path: None)
    monkeypatch.setattr(Matcher, "extend", lambda self, tokens: True)
    assert distance("choice", chain(1), mode) > SEEN
