"""Drafting by a head: on its own features while the verifier works, re-anchored by each verdict.

A tiny target with random weights and a tiny random head for it. What should be drafted is worked
out anew each time, with a fresh cache that was told the same states.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import pytest
import torch

from services.contract import types as t
from services.contract.worker_messages import TextStates
from services.drafter.methods.eagle.chances import Chances
from services.drafter.methods.eagle.eagle import EagleDrafter
from services.drafter.methods.graph.tree_growth import default_growth
from services.drafter.methods.model.ahead import AheadRules
from services.drafter.methods.model.informed import InformedDrafter
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.engine.eagle.loading import load_head
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from tests.engine.eagle import kit
from tests.models import tiny_model_folder
from tests.services import drafter_kit

LAYERS = (0, 1, 2)
PROMPT = [7, 30, 12, 99, 41, 5]
TEXT = [64, 18, 120, 77, 230, 9, 14, 202, 61]
"""What the target says behind the prompt, whatever is drafted."""


def head(folder, **more):
    """A head for a tiny target."""
    target = tiny_model_folder(folder, "llama")
    shape = {"hidden_size": 64, "num_attention_heads": 4}
    made = kit.make(3, shape=shape, eagle_aux_hidden_state_layer_ids=list(LAYERS), **more)
    saved = kit.save_speculators(made, folder / "head", **({"mask_token_id": 2} if more else {}))
    return load_head(ModelSpec(str(saved), "float32", base=str(target), threads=1))


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return head(tmp_path_factory.mktemp("eagle"))


@pytest.fixture(scope="module")
def parallel(tmp_path_factory):
    """One that drafts four tokens in a pass."""
    return head(tmp_path_factory.mktemp("peagle"), parallel=4)


def states(positions: range, width: int) -> bytes:
    """The target's states at positions of the text: numbers that nothing else has."""
    rows = [
        torch.randn(width, generator=torch.Generator().manual_seed(50 + place))
        for place in positions
    ]
    block = torch.stack(rows) if rows else torch.empty(0, width)
    return block.to(torch.bfloat16).view(torch.int16).numpy().tobytes()


class Site(drafter_kit.Worker):
    """A core that drafts with a head, and what it emitted."""

    def __init__(self, engine, method="eagle", **opening) -> None:
        self.engine, self.drafts = engine, []
        self.drafter = EagleDrafter(
            engine,
            least=opening.pop("least", 0.0),
            trees=opening.pop("trees", None),
        )
        drafters = {"eagle": self.drafter}
        if method != "eagle":
            ngram = NgramDrafter()
            both = InformedDrafter(ngram, self.drafter, AheadRules(awaited=2), name="eagle")
            drafters = {"ngram": ngram, "eagle": self.drafter, "ngram,eagle": both}
        super().__init__(drafters)
        self.output = []
        self.open("s", PROMPT, method=method, **opening)

    def read(self, count: int = len(PROMPT) - 1) -> None:
        """The verifier tells states of the prompt."""
        rows = states(range(count), self.engine.state_width)
        self.core.handle(0, TextStates(self.handle("s"), 1, 0, rows))

    def commit(self, tokens: Sequence[int], *, told: bool = True) -> None:
        """A step with so many tokens of the target's, and their states."""
        base = len(self.output)
        first = len(PROMPT) + base - 1
        rows = states(range(first, first + len(tokens)), self.engine.state_width) if told else b""
        self.output += tokens
        self.say("s", base, tokens, states=rows)

    def settle(self) -> list[drafter_kit.Drafted]:
        """Step until nothing is left to do; what was drafted."""
        for _ in range(200):
            if not self.core.step():
                assert not self.gone
                self.drafts = self.drafted()
                return self.drafts
        raise AssertionError("it never comes to rest")

    def tokens(self) -> list[int]:
        """The tokens of all chains that were drafted."""
        return [token for draft in self.settle() for token in draft.tree.token_ids]


def expected(engine, text: Sequence[int], count: int, first: int = 0) -> list[int]:
    """The likeliest tokens behind a text, whose states are known from `first` on."""
    return [token for token, _ in likeliest(engine, text, count, first)]


def likeliest(engine, text: Sequence[int], count: int, first: int = 0) -> list[tuple[int, float]]:
    """The same, each with its probability."""
    cache = engine.new_cache(len(text) + count)
    try:
        cache.anchor(first, states(range(first, len(text) - 1), engine.state_width))
        fresh, found = list(text), []
        while len(found) < count:
            (rows,) = engine.forward([Segment(cache, fresh, logits_from=len(fresh) - 1)])
            column = int(rows[-1].argmax())
            fresh = [int(engine.head_ids[column])]
            found.append((fresh[0], float(rows[-1].softmax(-1)[column])))
        return found
    finally:
        cache.free()


def between(engine, text: Sequence[int], count: int) -> float:
    """A chance that a draft of `count` tokens behind a text has, and none of one more."""
    chances = [chance for _, chance in likeliest(engine, text, count + 1)]
    return (prod(chances) + prod(chances[:count])) / 2


def test_a_draft_begins_when_the_states_of_the_prompt_are_there(engine):
    site = Site(engine, window=4)
    assert site.tokens() == []
    site.read()
    assert site.tokens() == expected(engine, PROMPT, 4)


def test_a_chain_follows_from_the_states_and_then_from_its_own_features(engine):
    site = Site(engine, window=5)
    site.read()
    site.settle()
    site.commit(TEXT[:1])
    assert site.tokens() == expected(engine, [*PROMPT, TEXT[0]], 5)


def test_every_verdict_anchors_the_draft_anew(engine):
    site = Site(engine, window=3)
    site.read()
    site.commit(TEXT[:1])
    site.settle()
    for end in (3, 4, 8):
        site.commit(TEXT[len(site.output) : end])
        assert site.tokens() == expected(engine, [*PROMPT, *TEXT[:end]], 3)


def test_an_accepted_draft_goes_on_from_the_states_that_came_with_the_verdict(engine):
    site = Site(engine, window=4)
    site.read()
    site.commit(TEXT[:1])
    drafted = site.tokens()
    site.commit(drafted[:2])
    text = [*PROMPT, TEXT[0], *drafted[:2]]
    tail = drafted[2:]
    # Two places of the window are free again; what was drafted before them stays.
    cache = engine.new_cache(64)
    cache.anchor(0, states(range(len(text) - 1), engine.state_width))
    (rows,) = engine.forward([Segment(cache, [*text, *tail], logits_from=len(text) + 1)])
    cache.free()
    assert site.tokens()[0] == int(engine.head_ids[rows[-1].argmax()])


@pytest.mark.parametrize("method", ["eagle", "ngram,eagle"])
@pytest.mark.parametrize("shared", [True, False])
def test_completions_of_one_prompt_draft_from_the_states_that_one_of_them_was_told(
    engine, method, shared
):
    scope = {"fork_scope": "acme/r"} if shared else {}
    trees = {"num_candidates": 4} if method != "eagle" else {}
    site = Site(engine, method, window=3, **scope, **trees)
    site.open("other", PROMPT, method=method, window=3, **scope, **trees)
    site.settle()
    site.read()
    site.settle()
    site.commit(TEXT[:1])
    # The verifier copied the prompt: of that it tells no states.
    first = len(PROMPT) - 1
    rows = states(range(first, first + 1), engine.state_width)
    site.say("other", 0, TEXT[:1], states=rows)
    drafts = site.settle()
    tokens = {
        name: [token for one in drafts if one.session == name for token in one.tree.token_ids]
        for name in ("s", "other")
    }
    assert tokens["s"]
    assert (tokens["other"] == tokens["s"]) == shared
    assert site.core.progress().copied_tokens == (first if shared else 0)


@pytest.mark.parametrize("count", [0, 2])
def test_without_the_prompts_states_it_drafts_from_those_that_came(engine, count):
    site = Site(engine, window=3)
    site.read(count)
    site.settle()
    site.commit(TEXT[:2])
    first = len(PROMPT) - 1
    if not count:
        assert site.tokens() == expected(engine, [*PROMPT, *TEXT[:2]], 3, first)
    else:
        assert len(site.tokens()) == 3


def test_a_verifier_that_stops_sending_states_leaves_drafts_on_own_features(engine):
    site = Site(engine, window=3)
    site.read()
    site.commit(TEXT[:1])
    site.settle()
    site.commit(TEXT[1:3], told=False)
    assert len(site.tokens()) == 3


def test_without_any_states_nothing_is_drafted_and_nothing_fails(engine):
    site = Site(engine, window=3)
    site.commit(TEXT[:1], told=False)
    assert site.tokens() == []
    site.commit(TEXT[1:3], told=False)
    assert site.tokens() == []


@pytest.mark.parametrize("mode", list(t.VerifyMode))
@pytest.mark.parametrize("count", [1, 3])
def test_every_mode_drafts_chains_and_trees(engine, mode, count):
    temperature = 0.0 if mode is t.VerifyMode.GREEDY else 0.9
    site = Site(engine, window=4, mode=mode, num_candidates=count, temperature=temperature)
    site.read()
    site.commit(TEXT[:1])
    drafts = site.settle()
    assert sum(len(draft.tree) for draft in drafts) >= 3
    sampled = mode in drafter_kit.SAMPLED
    assert all((draft.tree.q is not None) is sampled for draft in drafts if len(draft.tree))
    assert all((draft.tree.parents is not None) is (count > 1) for draft in drafts if draft.tree.q)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_chain_ends_before_a_token_that_hardly_stays(engine, count):
    text = [*PROMPT, TEXT[0]]
    site = Site(engine, window=6, least=between(engine, text, count))
    site.read()
    site.commit(TEXT[:1])
    drafts = site.settle()
    assert [t for draft in drafts for t in draft.tree.token_ids] == expected(engine, text, count)
    assert drafts[-1].final
    site.allow("s", 7)
    assert site.tokens() == []


def test_a_chain_goes_on_when_what_it_ended_with_is_committed(engine):
    text = [*PROMPT, TEXT[0]]
    site = Site(engine, window=6, least=between(engine, text, 2))
    site.read()
    site.commit(TEXT[:1])
    assert len(site.tokens()) == 2
    site.commit(expected(engine, text, 1))
    assert len(site.tokens()) > 0


def test_a_verdict_says_what_the_token_before_which_a_draft_ended_was_worth(engine):
    text, believed = [*PROMPT, TEXT[0]], []
    kept = expected(engine, text, 3)
    for last in (kept[2], kept[2] + 1):
        site = Site(engine, window=6, least=between(engine, text, 2))
        session = site.drafter._sessions[0, site.handle("s")]
        site.read()
        site.commit(TEXT[:1])
        site.settle()
        site.commit([*kept[:2], last])
        site.settle()
        believed.append(session.chances.believed(likeliest(engine, text, 3)[2][1]))
    right, wrong = believed
    assert right > wrong


@pytest.mark.parametrize("mode", drafter_kit.SAMPLED)
@pytest.mark.parametrize("count", [1, 3])
def test_what_is_drawn_has_the_length_that_was_asked_for(engine, mode, count):
    site = Site(engine, window=4, mode=mode, least=0.99, num_candidates=count, temperature=0.9)
    site.read()
    site.commit(TEXT[:1])
    drafts = [draft.tree for draft in site.settle() if len(draft.tree)]
    assert sum(len(tree) for tree in drafts) == 4 * count


@pytest.mark.parametrize("mode", [t.VerifyMode.GREEDY, t.VerifyMode.COUPLED])
def test_a_tree_has_what_is_likely_to_stay_and_no_more(engine, mode):
    sizes = []
    for least in (0.0, 0.05, 0.3):
        temperature = 0.0 if mode is t.VerifyMode.GREEDY else 0.9
        site = Site(
            engine,
            window=6,
            mode=mode,
            temperature=temperature,
            num_candidates=4,
            least=least,
            trees=default_growth,
        )
        site.read()
        site.commit(TEXT[:1])
        (draft,) = site.settle()
        sizes.append(len(draft.tree))
    assert sizes[0] >= sizes[1] > sizes[2]


def test_probabilities_are_believed_as_far_as_verdicts_bear_them_out():
    chances = Chances(0.1)
    assert chances.believed(0.8) == pytest.approx(0.8)
    for hit in [True, False, False, False] * 50:
        chances.observe(0.8, hit=hit)
        chances.observe(0.3, hit=True)
    assert chances.believed(0.8) == pytest.approx(0.25, abs=0.05)
    assert chances.believed(0.3) > 0.8
    assert chances.believed(0.05) == pytest.approx(0.05)
    assert chances.believed(0.44) <= 1.0


def test_small_trees_have_the_heads_word_at_the_end_of_the_text(engine):
    site = Site(engine, "ngram,eagle", window=8, num_candidates=4)
    site.read()
    site.settle()
    site.commit(TEXT[:1])
    for end in (3, 4, 8):
        (draft,) = [one for one in site.settle() if len(one.tree)]
        text = [*PROMPT, *site.output]
        assert draft.tree.token_ids[0] == expected(engine, text, 1)[0]
        assert t.DraftSource.EAGLE in draft.sources
        assert t.DraftSource.MODEL not in draft.sources
        site.commit(TEXT[len(site.output) : end])


def in_one_pass(engine, text: Sequence[int], count: int) -> list[int]:
    """The likeliest tokens behind a text and masks."""
    cache = engine.new_cache(64)
    cache.anchor(0, states(range(len(text) - 1), engine.state_width))
    fed = [*text, *engine.soft_ids[: count - 1]]
    (rows,) = engine.forward([Segment(cache, fed, logits_from=len(text) - 1)])
    cache.free()
    return engine.head_ids[rows.argmax(-1)].tolist()


def test_a_parallel_head_drafts_in_one_pass_and_only_from_verdicts(parallel):
    site = Site(parallel, window=8)
    site.read()
    for end in (1, 3, 4):
        site.commit(TEXT[len(site.output) : end])
        drafts = [one for one in site.settle() if len(one.tree)]
        assert [len(one.tree) for one in drafts] == [4]
        assert list(drafts[0].tree.token_ids) == in_one_pass(parallel, [*PROMPT, *TEXT[:end]], 4)
    accepted = drafts[0].tree.token_ids
    site.commit(accepted[:2])
    assert site.tokens() == []
    site.commit(accepted[2:])
    assert site.tokens() == in_one_pass(parallel, [*PROMPT, *site.output], 4)


def test_a_parallel_head_drafts_no_token_that_hardly_stays(parallel):
    whole = Site(parallel, window=8)
    some = Site(parallel, window=8, least=0.2)
    for site in (whole, some):
        site.read()
        site.commit(TEXT[:1])
        site.settle()
    (all_of_it,), (beginning,) = whole.drafts, some.drafts
    count = len(beginning.tree)
    assert 0 < count < 4
    assert beginning.tree.token_ids == all_of_it.tree.token_ids[:count]


@pytest.mark.parametrize("mode", list(t.VerifyMode))
def test_a_parallel_head_drafts_in_every_mode(parallel, mode):
    temperature = 0.0 if mode is t.VerifyMode.GREEDY else 0.9
    site = Site(parallel, window=3, mode=mode, temperature=temperature)
    site.read()
    site.commit(TEXT[:1])
    (draft,) = [one for one in site.settle() if len(one.tree)]
    assert len(draft.tree) == 3
    assert len(draft.tree.q or ()) == (3 if mode in drafter_kit.SAMPLED else 0)


def test_what_was_heard_and_taken_back_leaves_no_states_behind(engine):
    site = Site(engine, window=3)
    site.read()
    site.commit(TEXT[:3])
    site.settle()
    cache = site.drafter._sessions[0, site.handle("s")].cache
    site.drafter.rewind((0, site.handle("s")), len(PROMPT) + 1)
    assert cache.anchored == len(PROMPT) + 1


def test_states_of_another_head_are_dropped(engine):
    site = Site(engine, window=3)
    site.read()
    rows = states(range(5, 6), engine.state_width - 1)
    site.say("s", 0, TEXT[:1], states=rows)
    site.output += TEXT[:1]
    assert len(site.tokens()) == 3
    site.commit(TEXT[1:2])
    assert len(site.tokens()) == 3
