"""No key of the DRAFT stream is ever drawn twice, whatever arrives and in whatever order."""

import random
from collections import Counter, deque
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contract import types as t
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.self_draft.lookahead import LookaheadDrafter
from services.engine import noise
from services.engine.noise import Stream
from tests.services.drafter_kit import (
    EXACT,
    SAMPLED,
    VOCAB,
    FakeEngine,
    Harness,
    SoftEngine,
    opening,
)
from tests.tries import tries

LAW = t.ResolvedSampling(max_tokens=200, presence_penalty=0.3)


@contextmanager
def recorded():
    """Every key of the DRAFT stream that is derived, and how often."""
    keys = Counter()
    derive_key = noise.derive_key

    def recording(seed, stream, *counters):
        if stream is Stream.DRAFT:
            keys[seed, *counters] += 1
        return derive_key(seed, stream, *counters)

    with patch.object(noise, "derive_key", recording):
        yield keys


def draws(draft):
    """Candidates per drawn law of a draft."""
    return list(Counter(draft.tree.every_parent).values())


class Target:
    """An orchestrator and a verifier with random verdicts, under the rules of the epoch.

    The epoch moves at a rejection, at a bonus that nothing drafted confirms, and
    at a re-open. Commands and drafts are under way for a while.
    """

    def __init__(self, choice, mode, candidates):
        self.choice = choice
        self.harness = Harness(FakeEngine(capacity=10_000))
        self.mode, self.candidates = mode, candidates
        self.epoch, self.committed = 1, []
        self.tail = []
        self.commands = deque()
        self.drafts = deque()
        self.drawn = 0
        self.starts = set()
        self.open()

    def open(self):
        own = {"epoch": self.epoch, "committed": tuple(self.committed), "mode": self.mode}
        fresh = opening(sampling=LAW, window=5, num_candidates=self.candidates, **own)
        self.commands += (t.CloseDraft("s"), fresh)

    def deliver_command(self):
        if self.commands:
            self.harness.core.handle(0, self.commands.popleft())

    def step(self):
        entry = self.harness.core._entries.get((0, "s"))
        room = entry.session.room if entry is not None else 0
        self.harness.core.step()
        for draft in self.harness.take():
            self.absorb(draft, room)

    def absorb(self, draft, room):
        """Nothing is withheld but a second draft from the very same place."""
        start = draft.epoch, draft.first_position
        assert draft.tree.token_ids or room == 0 or start in self.starts
        self.starts.add(start)
        self.drawn += sum(draws(draft))
        self.drafts.append(draft)

    def deliver_draft(self):
        if not self.drafts:
            return
        draft = self.drafts.popleft()
        text = [*self.committed, *self.tail_tokens()]
        fits = draft.first_position == len(text) and not self.has_tree()
        if draft.epoch == self.epoch and fits and draft.tree.token_ids:
            assert draft.prefix_hash == t.extend_hash(t.EMPTY_HASH, text)
            self.tail.append(draft)

    def tail_tokens(self):
        return [
            token for draft in self.tail if draft.tree.is_chain for token in draft.tree.token_ids
        ]

    def has_tree(self):
        return any(not draft.tree.is_chain for draft in self.tail)

    def verdict(self):
        """One block is verified: accepted to a leaf or not, with a token after it or not."""
        path, whole = self.accepted()
        extra = [] if whole and path and self.choice.random() < 0.6 else [self.token()]
        left = self.tail_tokens()[len(path) :] if not self.has_tree() else []
        confirmed = not extra or left[:1] == extra
        base = len(self.committed)
        self.committed += path + extra
        if whole and confirmed and not self.has_tree():
            self.shorten(len(path) + len(extra))
        else:
            self.tail = []
        self.epoch += not (whole and confirmed)
        self.commands.append(t.CommitDraft("s", self.epoch, base, (*path, *extra)))

    def token(self):
        return self.choice.randrange(VOCAB)

    def accepted(self):
        """Accepted tokens of the first block of the tail, and whether they reach a leaf."""
        if not self.tail:
            return [], True
        tree = self.tail[0].tree
        if tree.is_chain:
            tokens = self.tail_tokens()
            block = tokens[: self.choice.randint(1, len(tokens))]
            whole = self.choice.random() < 0.6
            kept = block if whole else block[: self.choice.randrange(len(block))]
            return kept, kept == block
        node, path = self.choice.randrange(len(tree)), []
        leaf = node not in (tree.parents or ())
        while node >= 0:
            path.append(tree.token_ids[node])
            node = (tree.parents or ())[node]
        return path[::-1], leaf

    def shorten(self, count):
        """The tail without its first `count` tokens; pieces are chains of one token here."""
        while count > 0 and self.tail:
            count -= len(self.tail.pop(0).tree)

    def move(self):
        """Anything that may happen next."""
        kind = self.choice.random()
        if kind < 0.35:
            self.step()
        elif kind < 0.55:
            self.deliver_draft()
        elif kind < 0.75:
            self.deliver_command()
        elif kind < 0.93:
            self.verdict()
        elif kind < 0.98:
            self.harness.credit("s", self.choice.randint(0, 6))
        else:
            self.epoch += 1
            self.tail = []
            self.open()


@pytest.mark.parametrize("candidates", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_no_key_is_drawn_twice_in_a_long_life_and_nothing_is_withheld(seed, candidates):
    target = Target(random.Random(seed), SAMPLED[seed % 2], candidates)
    with recorded() as keys:
        while len(target.committed) < 180:
            target.move()
    assert keys.total() >= target.drawn > 100
    assert max(keys.values()) == 1


HOSTILE = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(st.just("credit"), st.integers(0, 6)),
        st.tuples(st.just("bump"), st.just(0)),
        st.tuples(st.just("agree"), st.integers(0, 4)),
        st.tuples(st.just("contradict"), st.integers(0, 4)),
    ),
    max_size=25,
)


@tries(80)
@given(
    HOSTILE,
    st.integers(1, 3),
    st.sampled_from(SAMPLED),
    st.sampled_from([(FakeEngine, ModelDrafter), (SoftEngine, LookaheadDrafter)]),
)
def test_no_key_is_drawn_twice_even_where_the_epoch_should_have_moved(
    moves, candidates, mode, drafter
):
    engine, method = drafter
    harness = Harness(own := engine(), drafter=method(own))
    with recorded() as keys:
        harness.open(mode=mode, num_candidates=candidates, sampling=LAW, window=4)
        session, epoch = harness.session, 1
        for kind, count in moves:
            tail = [*session.text, *harness.state._comb.trunk][3 + session.committed_length :]
            match kind:
                case "step":
                    harness.steps(count)
                case "credit":
                    harness.credit("s", count)
                case "bump":
                    epoch += 1
                    harness.commit("s", session.committed_length, [], epoch)
                case "agree":
                    harness.commit("s", session.committed_length, tail[:count], epoch)
                case "contradict":
                    wrong = (tail[count] + 1) % VOCAB if count < len(tail) else 0
                    harness.commit("s", session.committed_length, [*tail[:count], wrong], epoch)
        harness.run()
    assert not keys or max(keys.values()) == 1


@pytest.mark.parametrize("candidates", [1, 2])
def test_a_text_that_went_back_in_its_epoch_waits_until_it_has_passed_what_was_drawn(candidates):
    harness = Harness()
    first = harness.drafts(mode=t.VerifyMode.STANDARD, num_candidates=candidates, window=4)
    if candidates == 1:
        harness.commit("s", 0, [(harness.session.text[3] + 1) % VOCAB])
    else:
        harness.credit("s", 4)
    (silent,) = harness.run()
    assert (silent.tree.token_ids, silent.final) == ((), True)
    if candidates == 1:
        harness.commit("s", 1, [0, 0, 0])
    else:
        harness.commit("s", 0, [first[0].tree.token_ids[1]])
    assert harness.run()[0].tree.token_ids


@pytest.mark.parametrize("candidates", [1, 2])
def test_a_step_that_failed_and_is_asked_again_draws_each_key_once(candidates):
    harness = Harness()
    harness.engine.explode = 9
    for name, prompt in (("good", [1, 2]), ("bad", [3, 9])):
        harness.open(name, prompt, mode=t.VerifyMode.BLOCK, num_candidates=candidates, window=3)
    with recorded() as keys:
        drafts = harness.run()
    assert sum(sum(draws(draft)) for draft in drafts) == keys.total()
    assert max(keys.values()) == 1


def test_a_drawn_tree_is_not_continued_from_a_text_that_grew_by_its_trunk():
    harness = Harness()
    harness.open(mode=t.VerifyMode.STANDARD, num_candidates=2, window=4)
    harness.steps(3)
    harness.commit("s", 0, harness.state._comb.trunk[:1])
    with recorded() as keys:
        (draft,) = harness.run()
    nodes = {node for _, epoch, index, position, node, _ in keys if position == 1}
    assert (draft.first_position, nodes) == (1, {0, 1, 3, 5})
    assert keys.total() == len(draft.tree) == 8


@pytest.mark.parametrize("mode", EXACT)
def test_exact_modes_draw_nothing(mode):
    with recorded() as keys:
        assert Harness().drafts([1, 2], mode=mode, num_candidates=2)
    assert not keys
