"""Small trees of all free sources: their shape, whose texts they show, and what they leave."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.contract.types import DraftSource, VerifyMode
from services.drafter.methods.ngram.mixture import Shares
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.drafter.methods.ngram.small_tree import SmallTrees
from services.drafter.methods.ngram.text_pool import PoolLimits, TextPool
from services.engine import noise
from services.engine import random_keys as keys
from services.engine.ngram_file import FIRSTS, Laws, NgramFile, code_of, extend_key, support_of
from tests.services.drafter_kit import EXACT, Worker
from tests.tries import tries

VOCAB = 50


def started(prompt, mode=VerifyMode.GREEDY, scope="", **changes):
    own = {"num_candidates": 8, "vocab_size": VOCAB, "phrase_scope": scope, "mode": mode}
    law = {"max_tokens": 500, "temperature": 0.0 if mode is VerifyMode.GREEDY else 1.0}
    return {"prompt": prompt} | own | law | changes


class Bench(Worker):
    """A drafter of small trees behind a core, and what it sends."""

    def __init__(self, small=None):
        self.small = small or SmallTrees()
        super().__init__({"ngram": NgramDrafter(small=self.small)})

    def began(self, prompt, *args, **changes):
        """What is drafted for a new session `s`."""
        self.close()
        return self.drafts(**started(prompt, *args, **changes))

    def brought(self, position, tokens, **more):
        """What is drafted behind a step of it."""
        self.say("s", position, tokens, **more)
        return self.run()

    def write(self, scope, text):
        """A whole session of a scope, at an end."""
        self.open("whole", **started([1], scope=scope))
        self.run()
        self.say("whole", 0, text)
        self.run()
        self.close("whole")


texts = st.lists(st.integers(0, 5), min_size=1, max_size=60)


@tries(100)
@given(texts, st.sampled_from(EXACT))
def test_every_beginning_of_a_tree_is_a_tree_and_chances_fall(prompt, mode):
    (draft,) = Bench().began(prompt, mode)
    tree, reach = draft.tree, draft.reach
    assert draft.final
    assert len(reach) == len(tree) == len(tree.every_parent)
    assert list(reach) == sorted(reach, reverse=True)
    assert all(0 < chance <= 1 for chance in reach)
    assert all(parent < node for node, parent in enumerate(tree.every_parent))
    assert draft.sources == bytes([DraftSource.THIS_TEXT]) * len(tree)
    siblings = list(zip(tree.every_parent, tree.token_ids, strict=True))
    assert len(set(siblings)) == len(siblings)
    for parent in {-1, *range(len(tree))}:
        below = sum(r for r, p in zip(reach, tree.every_parent, strict=True) if p == parent)
        assert below <= (1.0 if parent < 0 else reach[parent]) + 1e-9


@tries(50)
@given(texts, st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), max_size=6))
def test_a_tree_is_a_function_of_the_text_alone(prompt, commits):
    bench, output = Bench(), []
    bench.began(prompt)
    for tokens in commits:
        (draft,) = bench.brought(len(output), tokens)
        output += tokens
        (again,) = Bench().began(prompt, output=tuple(output))
        assert (draft.tree, draft.reach) == (again.tree, again.reach)
        assert draft.position == len(output)


def test_what_followed_before_comes_first():
    (draft,) = Bench().began([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4])
    assert draft.tree.token_ids[:3] == (5, 6, 7)


def test_nothing_is_drafted_behind_a_token_that_ends_the_text():
    prompt = [1, 2, 3, 4, 5, 6, 1, 2, 3, 4]
    (draft,) = Bench().began(prompt, stop_token_ids=(5,))
    end = draft.tree.token_ids.index(5)
    assert end not in (draft.tree.parents or ())


def test_where_drafts_are_judged_by_rejection_chains_are_drafted():
    (draft,) = Bench().began([1, 2, 3, 1, 2], VerifyMode.STANDARD)
    assert (draft.tree.parents, draft.reach) == (None, ())
    assert draft.sources == bytes([DraftSource.THIS_TEXT]) * len(draft.tree) != b""


def test_a_tenant_gets_its_own_texts_and_no_other_does():
    bench = Bench()
    bench.write("a", range(10, 30))
    (told,) = bench.began([15, 16], scope="a")
    assert told.tree.token_ids[:2] == (17, 18)
    assert set(told.sources) == {DraftSource.OTHER_TEXTS}
    recalled = bench.core.progress().recalled_tokens
    assert recalled == len(told.tree)
    for scope in ("b", ""):
        (draft,) = bench.began([15, 16], scope=scope)
        assert 17 not in draft.tree.token_ids
    assert bench.core.progress().recalled_tokens == recalled


def test_what_a_text_says_by_itself_is_not_recalled():
    bench = Bench()
    bench.write("a", range(10, 30))
    (draft,) = bench.began([40, 41, 42, 40, 41], scope="a")
    assert draft.tree.token_ids[:1] == (42,)
    assert bench.core.progress().recalled_tokens == 0


def test_an_ephemeral_session_leaves_nothing():
    bench = Bench()
    bench.write("", range(10, 30))
    assert bench.small.pool.size == 0


def test_a_pool_holds_no_more_than_it_may():
    pool = TextPool(PoolLimits(per_scope=100, capacity=250))
    for number in range(200):
        pool.learn(f"t{number % 5}", [number] * (1 + number * 7 % 90))
        assert all(sum(map(len, pool.of(f"t{n}"))) <= 100 for n in range(5))
        assert pool.size == sum(sum(map(len, pool.of(f"t{n}"))) for n in range(5)) <= 250


def test_two_texts_of_a_tenant_are_not_one():
    pool = TextPool()
    pool.learn("t", [1, 2, 3])
    pool.learn("t", [4, 5, 6])
    bench = Bench(SmallTrees(pool=pool))
    (draft,) = bench.began([2, 3], scope="t")
    assert draft.tree.token_ids == ()


def a_file(**laws):
    """After token 3 alone 4 comes first, and in texts `laws`."""
    ids, codes = [0] * VOCAB * FIRSTS, bytearray(VOCAB * FIRSTS)
    ids[3 * FIRSTS], codes[3 * FIRSTS] = 4, code_of(0.9)
    said = Laws((extend_key(0, 3),), bytes([support_of(64)]), (0, 1), (6,), bytes([code_of(0.9)]))
    weights = {"greedy.first": 1.0, "greedy.first_code": 1.0, "greedy.law1_code": 3.0}
    return NgramFile("t", "", "fp", VOCAB, ids, bytes(codes), (said,), weights)


def test_the_file_drafts_where_the_text_says_nothing():
    bench = Bench(SmallTrees(a_file()))
    (draft,) = bench.began([1, 3])
    assert draft.tree.token_ids[:2] == (6, 4)
    assert draft.sources[:2] == bytes([DraftSource.LAWS, DraftSource.FIRSTS])
    worker = bench.core.describe()
    assert (worker.tokenizer_fingerprint, worker.vocab_size) == ("fp", VOCAB)
    assert "ngram:estimates" in worker.capabilities


def test_a_token_that_several_sources_say_is_of_the_one_that_says_most():
    firsts, laws = {1: 2.0, 2: 1.0, 3: -1.0}, {1: 2.5, 2: 3.0, 3: -1.0}
    text = {**laws, 1: 3.0, 2: 6.0, 4: -0.5}
    others = {**text, 2: 7.0, 4: -0.5}
    rows = {**others, 4: 0.5, 6: 0.25}
    shares = Shares((firsts, laws, text, others, rows, {**rows, 1: 4.5, 3: 9.0, 5: -1.0}), None)
    told = [shares.greatest(token) for token in (1, 2, 3, 4, 5, 6)]
    firsts_, own, model = DraftSource.FIRSTS, DraftSource.THIS_TEXT, DraftSource.MODEL
    assert told == [firsts_, own, model, DraftSource.TARGET_ROWS, model, DraftSource.TARGET_ROWS]


def test_what_the_text_says_more_surely_than_the_file_is_of_the_text():
    file = a_file()
    sure = replace(file, weights={**file.weights, "greedy.own1": 5.0})
    (draft,) = Bench(SmallTrees(sure)).began([1, 3, 6, 1, 3])
    at = draft.tree.token_ids.index(6)
    assert draft.sources[at] == DraftSource.THIS_TEXT


@pytest.mark.parametrize(("prompt", "vocab"), [([1, 3], VOCAB + 1), ([1, 10**6], 0)])
def test_a_file_of_another_vocabulary_or_of_unknown_tokens_is_left_alone(prompt, vocab):
    (draft,) = Bench(SmallTrees(a_file())).began(prompt, vocab_size=vocab)
    assert draft.tree.token_ids == ()


@tries(200)
@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 2**22), min_size=1, max_size=20),
)
def test_the_noise_without_torch_is_the_noise(seed, position, ids):
    halves = keys.gumbel_halves(seed, position)
    words = noise.word_rows([(seed, position)], torch.tensor(ids))[0].tolist()
    assert [keys.word(halves, token) for token in ids] == [word & 0xFFFFFFFF for word in words]
    theirs = noise.to_exponential(noise.word_rows([(seed, position)], torch.tensor(ids)))[0]
    for token, value in zip(ids, theirs.tolist(), strict=True):
        assert math.isclose(keys.exponential(halves, token), value, rel_tol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_where_the_noise_is_shared_the_candidate_it_favours_comes_first(seed):
    # Both followed 9 as often, and no longer context was there: the noise alone decides.
    prompt = [3, 9, 1, 4, 9, 2, 5, 9, 1, 6, 9, 2, 7, 9]
    (draft,) = Bench().began(prompt, VerifyMode.COUPLED, seed=seed, window=1)
    halves = keys.gumbel_halves(seed, 0)
    told = [token for token in draft.tree.token_ids if token in (1, 2)]
    assert told == sorted(told, key=lambda token: keys.exponential(halves, token))
