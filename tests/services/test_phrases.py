"""The phrase pool: what it learns, keeps apart, forgets, and what a drafter makes of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contract import types as t
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.drafter.methods.ngram.phrases import Learner, PhraseLimits, PhrasePool, teach
from services.drafter.protocol import Ask
from tests.services.drafter_kit import SAMPLED, Worker, opening, tokens_of
from tests.tries import tries

SMALL = PhraseLimits(shortest=2, longest=3, length=4)


def pool_of(*texts, limits=SMALL):
    pool = PhrasePool(limits)
    for text in texts:
        teach(pool, "a", text)
    return pool


# --- the pool -------------------------------------------------------------------


def test_what_followed_the_end_of_a_text_is_found_up_to_the_length_of_a_phrase():
    pool = pool_of([1, 2, 3, 4, 5, 6, 7, 8])
    assert pool.find("a", [9, 1, 2, 3]) == (4, 5, 6, 7)
    assert pool.find("a", [9, 6, 7]) == (8,)
    assert pool.find("a", [7, 6]) == ()


def test_the_longest_ngram_decides_and_may_be_the_only_one_asked_for():
    pool = pool_of([1, 2, 3, 4], [9, 2, 3, 5])
    assert pool.find("a", [1, 2, 3]) == pool.find("a", [1, 2, 3], sure=True) == (4,)
    assert pool.find("a", [8, 2, 3]) == (5,)
    assert pool.find("a", [8, 2, 3], sure=True) == ()


def test_the_newest_committed_phrase_replaces_the_one_before():
    assert pool_of([1, 2, 3], [1, 2, 4]).find("a", [1, 2]) == (4,)


def test_a_guess_stands_for_the_longest_ngram_where_nothing_is_known():
    pool = pool_of([1, 2, 3, 4])
    for text in ([1, 2, 3, 9], [5, 6, 7, 8], [5, 6, 7, 9]):
        pool.guess("a", text, 3)
    assert pool.find("a", [1, 2, 3]) == (4,)
    assert pool.find("a", [5, 6, 7]) == (9,)
    assert pool.find("a", [5, 6, 7], sure=True) == pool.find("a", [0, 6, 7]) == ()
    pool.learn("a", [5, 6, 7, 3], 3)
    assert pool.find("a", [5, 6, 7], sure=True) == (3,)


def test_a_guess_comes_after_a_shorter_ngram_of_committed_text():
    pool = pool_of([6, 7, 1])
    pool.guess("a", [5, 6, 7, 9], 3)
    assert pool.find("a", [5, 6, 7]) == (1,)


def test_the_phrase_used_longest_ago_goes_first_in_its_scope():
    pool = PhrasePool(PhraseLimits(2, 2, 4, per_scope=2))
    pool.learn("a", [1, 2, 3], 2)
    pool.learn("a", [3, 4, 5], 2)
    assert pool.find("a", [1, 2]) == (3,)
    pool.learn("a", [5, 6, 7], 2)
    assert [pool.find("a", key) for key in ([1, 2], [3, 4], [5, 6])] == [(3,), (), (7,)]


def test_the_phrase_used_longest_ago_goes_first_among_all_scopes():
    pool = PhrasePool(PhraseLimits(2, 2, 4, capacity=2))
    pool.learn("a", [1, 2, 3], 2)
    pool.learn("b", [1, 2, 4], 2)
    assert pool.find("a", [1, 2]) == (3,)
    pool.learn("c", [1, 2, 5], 2)
    assert [pool.find(scope, [1, 2]) for scope in "abc"] == [(3,), (), (5,)]


texts = st.lists(st.integers(0, 3), max_size=12)
deeds = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["teach", "guess", "find"]), texts),
    max_size=25,
)


def replay(events, limits):
    pool = PhrasePool(limits)
    for scope, deed, text in events:
        if deed == "teach":
            teach(pool, scope, text)
        elif deed == "guess":
            pool.guess(scope, text, len(text) // 2)
        else:
            pool.find(scope, text)
        assert len(pool) == sum(pool.size(known) for known in "abc") <= limits.capacity
        assert all(pool.size(known) <= limits.per_scope for known in "abc")
    return pool


@tries(200)
@given(deeds)
def test_the_bounds_hold_and_equal_histories_leave_equal_pools(events):
    limits = PhraseLimits(1, 2, 3, per_scope=7, capacity=12)
    first, second = replay(events, limits), replay(events, limits)
    for scope in "abc":
        for key in ([0], [1], [0, 1], [2, 3]):
            assert first.find(scope, key) == second.find(scope, key)


@tries(200)
@given(deeds)
def test_a_scope_holds_what_it_would_hold_alone(events):
    together = replay(events, SMALL)
    alone = replay([event for event in events if event[0] == "a"], SMALL)
    for key in ([0, 1], [2, 2], [3, 1, 2], [0, 0, 0]):
        assert together.find("a", key) == alone.find("a", key)


# --- what a session teaches -----------------------------------------------------


def ask(prompt, committed, tail=()):
    text = [*prompt, *committed, *tail]
    known = len(prompt) + len(committed)
    return Ask((0, "s"), 1, text, len(prompt), known, room=8)


def followed(*deeds):
    """A pool after what a session committed and, as lists, what was drafted for it."""
    pool = PhrasePool(SMALL)
    learner = Learner(pool, "a")
    for deed in deeds:
        learner.follow(deed) if isinstance(deed, Ask) else learner.drafted(deed)
    return pool, learner


def test_a_phrase_is_learned_once_it_is_whole_and_the_rest_at_the_end():
    pool, learner = followed(ask([0], [1, 2, 3, 4, 5]))
    assert pool.find("a", [1, 2]) == ()
    learner.follow(ask([0], [1, 2, 3, 4, 5, 6]))
    assert pool.find("a", [1, 2]) == (3, 4, 5, 6)
    learner.finish()
    assert pool.find("a", [4, 5]) == (6,)


def test_prompts_and_tails_are_not_learned():
    pool, learner = followed(ask([1, 2, 3, 4, 5, 6, 7], [8, 9], tail=[1, 1, 1, 1, 1]))
    learner.finish()
    assert len(pool) == 0


def test_what_a_draft_went_on_with_after_the_corrected_token_is_a_guess():
    pool, _ = followed(ask([0], [1, 2]), [3, 4, 5, 6], ask([0], [1, 2, 3, 9]))
    assert pool.find("a", [2, 3, 9]) == (5, 6)
    assert len(pool) == 1


def test_a_draft_that_was_wrong_from_the_start_or_accepted_leaves_no_guess():
    pool, _ = followed(ask([0], [1, 2, 3]), [4, 5, 6], ask([0], [1, 2, 3, 9]))
    assert len(pool) == 0
    accepted = ask([0], [1, 2, 3], tail=[4, 5, 6]), ask([0], [1, 2, 3, 4], tail=[5, 6])
    pool, _ = followed(ask([0], [1, 2]), [3, 4, 5, 6], *accepted)
    assert len(pool) == 0


@tries(200)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(1, 4), texts), max_size=12),
)
def test_a_session_teaches_its_output_in_whatever_steps_it_came(output, steps):
    taught, pool = PhrasePool(SMALL), PhrasePool(SMALL)
    teach(taught, "a", output)
    learner, done = Learner(pool, "a"), 0
    for count, drafted in steps:
        learner.follow(ask([0, 1], output[:done]))
        learner.drafted(drafted)
        done = min(len(output), done + count)
    learner.follow(ask([0, 1], output))
    assert learner.finish() == output
    for start in range(len(output) - 2):
        key = output[start : start + 2]
        assert pool.find("a", key) == taught.find("a", key)


# --- the drafter ----------------------------------------------------------------


class World(Worker):
    """A core with one ngram drafter, in which sessions say what they are told to."""

    def __init__(self, pool=None):
        super().__init__({"ngram": NgramDrafter(2, 3, pool)})

    def drafts(self, prompt=(7, 8, 11, 12), **changes):
        """What is drafted for a session `s`."""
        return tokens_of(super().drafts(prompt, **({"window": 5, "max_tokens": 100} | changes)))

    def say(self, tokens, prompt=(1, 2, 3), **changes):
        """A session commits tokens one by one, each in an epoch of its own, and ends."""
        self.open("s1", prompt, **({"window": 5, "max_tokens": 100} | changes))
        for place, token in enumerate(tokens):
            self.run()
            self.commit("s1", place, (token,), place + 2)
        self.run()
        self.close("s1")


SAID = [11, 12, 13, 14, 15, 16, 17]


def test_a_later_session_of_the_scope_drafts_what_an_earlier_one_said():
    world = World()
    world.say(SAID, phrase_scope="acme")
    assert world.drafts(phrase_scope="acme") == [13, 14, 15, 16, 17]


def test_what_other_sessions_gave_is_counted_and_what_a_session_says_itself_is_not():
    world = World()
    world.say([*SAID, 20, 21, 11, 12, 9], phrase_scope="acme")
    assert world.core.progress().recalled_tokens == 0
    drafted = world.drafts(phrase_scope="acme")
    assert world.core.progress().recalled_tokens == len(drafted) > 0


def test_a_phrase_that_a_session_says_again_is_its_own():
    pool, learner = followed()
    teach(pool, "a", [1, 2, 3, 4])
    assert learner.find([1, 2]) == ((3, 4), True)
    learner.follow(ask([0], [1, 2, 5, 6, 7, 8]))
    assert learner.find([1, 2]) == ((5, 6, 7, 8), False)


@pytest.mark.parametrize(
    ("wrote", "reads"), [("acme", "other"), ("acme", ""), ("", "acme"), ("", "")]
)
def test_no_other_scope_and_no_session_without_one_sees_it(wrote, reads):
    world = World()
    world.say(SAID, phrase_scope=wrote)
    assert world.drafts(phrase_scope=reads) == []


@pytest.mark.parametrize("mode", SAMPLED)
def test_a_session_judged_by_rejection_shares_no_phrases(mode):
    matched = t.VerifyMode.COUPLED
    for wrote, reads, found in ((matched, mode, []), (mode, matched, []), (matched, matched, [13])):
        world = World()
        world.say(SAID, phrase_scope="acme", mode=wrote)
        assert world.drafts(phrase_scope="acme", mode=reads)[:1] == found


def test_a_prompt_never_reaches_another_session():
    world = World()
    world.say([3, 4, 5], [*SAID, 1, 2], phrase_scope="acme")
    assert world.drafts(phrase_scope="acme") == []


def test_a_copy_goes_on_after_the_token_that_was_corrected_even_without_a_scope():
    world = World()
    assert world.drafts([1, 2, 3, 4, 5, 6, 7, 1, 2]) == [3, 4, 5, 6, 7]
    world.commit("s", 0, (3, 4, 9), 2)
    assert tokens_of(world.run()) == [6, 7, 1, 2, 3]


def test_the_text_itself_comes_before_a_phrase():
    own, other = World(pool_of([1, 2, 3, 50])), World(pool_of([1, 2, 3, 50]))
    assert own.drafts([2, 3, 40, 1, 2, 3], phrase_scope="a", window=1) == [40]
    assert other.drafts([2, 1, 2, 3], phrase_scope="a", window=1) == [50]


def test_an_id_that_the_target_does_not_have_ends_a_phrase():
    world = World(pool_of([1, 2, 3, 500, 4]))
    assert world.drafts([1, 2], phrase_scope="a", vocab_size=100) == [3]


def test_in_front_of_another_method_only_the_longest_ngram_is_copied_after():
    prompt = [1, 2, 3, 9, 8, 2, 3]
    for method, first in (("ngram", 9), ("model,ngram", 9), ("ngram,model", None)):
        drafter = NgramDrafter(2, 3)
        drafter.open((0, "s"), opening("s", prompt, method=method))
        (proposed,) = drafter.propose([ask(prompt, [])])
        assert next(iter(proposed.tree.token_ids), None) == first
