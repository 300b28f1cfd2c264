"""Chains of what others said, and of drafts that were rejected: whose, and what comes first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contract import types as t
from services.drafter.methods.ngram.chains import ChainLengths
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.drafter.methods.ngram.small_tree import SmallTrees
from services.drafter.methods.ngram.text_pool import PoolLimits, TextPool
from services.drafter.protocol import Ask
from tests.services.drafter_kit import SAMPLED, Worker, opening, tokens_of
from tests.tries import tries

SMALL = ChainLengths(shortest=1, longest=3, phrase=4)
SAID = [11, 12, 13, 14, 15, 16, 17]


class World(Worker):
    """A core with one ngram drafter, in which sessions say what they are told to."""

    def __init__(self, *texts, lengths=SMALL, pool=None):
        self.pool = pool or TextPool()
        for text in texts:
            self.pool.learn("a", text)
        small = SmallTrees(pool=self.pool)
        super().__init__({"ngram": NgramDrafter(lengths, small=small)})

    def drafts(self, prompt=(7, 8, 11, 12), **changes):
        """What is drafted for a session `s`."""
        return tokens_of(super().drafts(prompt, **({"window": 5, "max_tokens": 100} | changes)))

    def write(self, tokens, prompt=(1, 2, 3), **changes):
        """A session says tokens one by one, each in a step of its own, and ends."""
        self.open("s1", prompt, **({"window": 5, "max_tokens": 100} | changes))
        for place, token in enumerate(tokens):
            self.run()
            self.say("s1", place, (token,))
        self.run()
        self.close("s1")


FOUND = {
    "a phrase, up to its length": ([[1, 2, 3, 4, 5, 6, 7, 8]], [9, 1, 2, 3], [4, 5, 6, 7]),
    "its end, no other text behind it": ([[1, 2, 3], [8, 9]], [7, 1, 2], [3]),
    "nothing, behind one token": ([[1, 2, 3]], [9, 2], []),
    "the longest match": ([[1, 2, 3, 4], [9, 2, 3, 5]], [1, 2, 3], [4]),
    "a shorter one": ([[1, 2, 3, 4], [9, 2, 3, 5]], [8, 2, 3], [5]),
    "the newest of equals": ([[1, 2, 3], [1, 2, 4]], [1, 2], [4]),
    "the text itself first": ([[1, 2, 3, 50]], [2, 3, 40, 1, 2, 3], [40]),
    "no id that the target does not have": ([[1, 2, 3, 500, 4]], [1, 2], [3]),
}


@pytest.mark.parametrize(("texts", "prompt", "found"), FOUND.values(), ids=FOUND)
def test_of_other_texts_this_is_found(texts, prompt, found):
    drafted = World(*texts).drafts(prompt, phrase_scope="a", window=4, vocab_size=100)
    assert drafted[: len(found) or 1] == found


def test_of_equal_matches_that_of_the_newer_index_counts():
    world = World([1, 2, 3], [1, 2, 4], pool=TextPool(PoolLimits(per_scope=8)))
    assert len(world.pool.of("a")) == 2
    assert world.drafts([1, 2], phrase_scope="a") == [4]


# --- what a session leaves ------------------------------------------------------


def test_what_other_sessions_gave_is_counted_and_what_a_session_says_itself_is_not():
    world = World()
    world.write([*SAID, 20, 21, 11, 12, 9], phrase_scope="acme")
    assert world.core.progress().recalled_tokens == 0
    drafted = world.drafts(phrase_scope="acme")
    assert world.core.progress().recalled_tokens == len(drafted) > 0


@pytest.mark.parametrize(
    ("wrote", "reads"),
    [("acme", "acme"), ("acme", "other"), ("acme", ""), ("", "acme"), ("", "")],
)
def test_no_other_scope_and_no_session_without_one_sees_it(wrote, reads):
    world = World()
    world.write(SAID, phrase_scope=wrote)
    expected = SAID[2:] if wrote == reads == "acme" else []
    assert world.drafts(phrase_scope=reads) == expected


@pytest.mark.parametrize("mode", SAMPLED)
def test_a_session_judged_by_rejection_shares_no_phrases(mode):
    matched = t.VerifyMode.COUPLED
    for wrote, reads, found in ((matched, mode, []), (mode, matched, []), (matched, matched, [13])):
        world = World()
        world.write(SAID, phrase_scope="acme", mode=wrote)
        assert world.drafts(phrase_scope="acme", mode=reads)[:1] == found


def test_a_prompt_never_reaches_another_session():
    world = World()
    world.write([3, 4, 5], [*SAID, 1, 2], phrase_scope="acme")
    assert world.drafts(phrase_scope="acme") == []


@tries(100)
@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=30),
    st.lists(st.integers(1, 4), max_size=12),
    st.integers(1, 6),
)
def test_a_session_leaves_its_output_in_whatever_steps_it_came(output, steps, window):
    world, done = World(), 0
    world.open("s", (0, 1), phrase_scope="a", window=window)
    for count in [*steps, len(output)]:
        world.run()
        world.say("s", done, output[done : done + count])
        done = min(len(output), done + count)
    world.run()
    world.close("s")
    (index,) = world.pool.of("a")
    assert index.tokens[1:] == output


# --- what was rejected ----------------------------------------------------------


def test_a_copy_goes_on_after_the_token_that_was_corrected_even_without_a_scope():
    world = World()
    assert world.drafts([1, 2, 3, 4, 5, 6, 7, 1, 2]) == [3, 4, 5, 6, 7]
    world.say("s", 0, (3, 4, 9))
    assert tokens_of(world.run()) == [6, 7, 1, 2, 3]


def test_a_guess_comes_after_a_shorter_match_in_a_text():
    world = World([4, 9, 30], lengths=ChainLengths(2, 3))
    world.drafts([1, 2, 3, 4, 5, 6, 7, 1, 2], phrase_scope="a")
    world.say("s", 0, (3, 4, 9))
    assert tokens_of(world.run())[:1] == [30]


@pytest.mark.parametrize("fresh", [(9,), (9, 8), (5, 8, 9), (5, 6, 7, 9)])
def test_a_draft_that_was_wrong_from_the_start_or_accepted_leaves_no_guess(fresh):
    world = World(lengths=ChainLengths(4, 4))
    assert world.drafts([1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4], window=3) == [5, 6, 7]
    world.say("s", 0, fresh)
    assert tokens_of(world.run()) == []


def test_in_front_of_another_method_only_the_longest_ngram_is_copied_after():
    prompt = [1, 2, 3, 9, 8, 2, 3]
    for method, first in (("ngram", 9), ("model,ngram", 9), ("ngram,model", None)):
        drafter = NgramDrafter(SMALL)
        drafter.open((0, "s"), opening(prompt, method=method))
        (proposed,) = drafter.propose([Ask((0, "s"), 1, prompt, len(prompt), len(prompt), room=8)])
        assert next(iter(proposed.tree.token_ids), None) == first
