"""A draft model as a source of small trees: where it goes, what it says there, and when."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.contract import types as t
from services.drafter.methods.model.ahead import Ahead, AheadRules
from services.drafter.methods.model.informed import InformedDrafter
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.model.places import DEEPEST, PLACES_IN_KV, Due, Places
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.drafter.methods.ngram.small_tree import SmallTrees
from services.engine.ngram_file import FIRSTS, NgramFile
from services.engine.port import Segment
from services.scheduling.step_time import StepTimeModel
from tests.services import drafter_kit
from tests.services.drafter_kit import SAMPLED, VOCAB, Clear, Worker, real_engine
from tests.tries import tries

NAME = "ngram,model"

WEIGHTS = {
    "greedy.own1": 1.0,
    "greedy.other": 1.0,
    "greedy.draft.own1": 1.0,
    "greedy.draft.draft": 4.0,
    "greedy.draft.draft_log": 1.0,
    "greedy.draft.other": 1.0,
    "coupled.draft.draft": 4.0,
    "coupled.draft.draft_log": 1.0,
    "coupled.draft.noise": 1.0,
    "coupled.draft.other": 1.0,
}


def started(prompt, **changes):
    """Of a session whose first step is there: it brought the last of these tokens."""
    own = {"num_candidates": 8, "method": NAME, "vocab_size": VOCAB, "temperature": 0.0} | changes
    return {"prompt": prompt[:-1], "output": tuple(prompt[-1:])} | own


class Bench(Worker):
    """A core with both methods, on a clock that stands still, and what it sends."""

    def __init__(self, engine=None, rules=None):
        self.engine = engine or Clear()
        self.now = 1.0
        file = NgramFile(
            "t", "w", "fp", VOCAB, [0] * VOCAB * FIRSTS, bytes(VOCAB * FIRSTS), (), WEIGHTS
        )
        ngram, model = NgramDrafter(small=SmallTrees(file)), ModelDrafter(self.engine)
        rules = rules or AheadRules()
        self.drafter = InformedDrafter(ngram, model, rules, clock=lambda: self.now)
        self.ahead = self.drafter._ahead
        super().__init__({"ngram": ngram, "model": model, NAME: self.drafter})

    def run(self, steps=50):
        """What so many steps bring."""
        for _ in range(steps):
            if not self.core.step():
                break
        return self.drafted()

    def began(self, prompt=(1, 2, 3), name="s", steps=50, **changes):
        """What a session brings that begins, with as much time as so many steps take."""
        self.open(name, **started(prompt, **changes))
        return self.run(steps)

    def brought(self, base, tokens, steps=50, name="s"):
        """The same of a step, behind the first one."""
        self.say(name, 1 + base, tokens)
        return self.run(steps)

    def places_of(self, name):
        return self.drafter._places[0, self.handle(name)]

    @property
    def places(self):
        return self.places_of("s")


# --- what it says --------------------------------------------------------------


def test_what_the_model_says_where_it_has_been_is_in_the_tree():
    bench = Bench()
    bench.began()
    text = [1, 2, 3]
    # The target says what the model would, so that it has been there.
    for base in range(6):
        said = bench.engine.continuation(text, 1)
        (draft,) = bench.brought(base, said)
        text += said
        assert draft.tree.token_ids[0] == bench.engine.greedy(text)
        assert draft.sources[0] == t.DraftSource.MODEL
        assert draft.final
        assert draft.tree.proposal is t.Proposal.ONE_HOT


def test_a_tree_waits_for_no_step_of_the_model():
    bench = Bench()
    (draft,) = bench.began([1, 2, 1], steps=1)
    assert bench.engine.forwards == []
    assert set(draft.sources) <= {t.DraftSource.THIS_TEXT}


def test_without_time_the_model_says_nothing_and_the_text_is_read_later():
    bench = Bench()
    bench.began()
    surprise = bench.engine.logits([1, 2, 3]).argmin()
    (draft,) = bench.brought(0, [int(surprise)], steps=1)
    assert t.DraftSource.MODEL not in draft.sources
    assert bench.places.unseen == 1
    bench.brought(1, [4])
    assert bench.places.unseen == 0


@tries(60)
@given(st.integers(0, 2**32 - 1))
def test_its_word_is_that_of_a_model_that_reads_exactly_that_text(seed):
    source, bench = random.Random(seed), Bench(rules=AheadRules(1 + seed % 12, 5))
    text = [source.randrange(VOCAB) for _ in range(source.randrange(2, 9))]
    bench.began(text)
    done = 0
    for _ in range(8):
        said = bench.engine.continuation(text, source.randrange(1, 4))
        if source.random() < 0.4:
            said[-1] = source.randrange(VOCAB)
        bench.brought(done, said, steps=source.randrange(0, 5))
        while bench.core.step() and source.random() < 0.7:
            pass
        text, done = text + said, done + len(said)
        bench.core.step()
        holds(bench, text)
        if done > 50:
            break
    bench.close("s")
    assert bench.engine.kv_tokens_used == 0


def holds(bench, text):
    """Every law is that of the text and the way to its place, and so is all K/V."""
    places = bench.places
    graph = places._graph
    for path in [()] + [graph.tokens(graph.path(place)) for place in range(len(graph.nodes))]:
        law = places.law(path)
        if law is None:
            continue
        best = bench.engine.logits([*text, *path]).log_softmax(-1).topk(8)
        assert law.ids == tuple(best.indices.tolist())
        assert law.logs == pytest.approx(best.values.tolist(), abs=1e-4)
        assert math.exp(law.rest) == pytest.approx(1 - float(best.values.exp().sum()), abs=2e-3)
    seen = len(text) - places.unseen
    assert places.cache.tokens[:seen] == list(text[:seen])
    for place, entry in places._entries.items():
        assert places.cache.text_at(len(text) + entry) == [*text, *graph.tokens(graph.path(place))]


def test_with_a_real_model_its_word_is_that_of_a_prefill():
    engine = real_engine(kv_capacity_tokens=2000)
    vocab, cache = engine.vocab_size, engine.new_cache(100)
    made = drafter_kit.opening(prompt=(5, 6, 7), num_candidates=8, vocab_size=vocab, max_tokens=40)
    places, ahead, text = Places(made, cache, vocab, 100), Ahead(engine, AheadRules()), [5, 6, 7]
    source = random.Random(3)
    for _ in range(8):
        places.follow(text)
        tree = t.DraftTree((9, 10, 11, 12), (-1, 0, 0, -1))
        places.expect(tree, (0.5, 0.3, 0.1, 0.1))
        for _ in range(3):
            ahead.step([places])
        for path in ((), (9,), (9, 10), (12,)):
            fresh = engine.new_cache(len(text) + 4)
            (rows,) = engine.forward([Segment(fresh, [*text, *path])])
            fresh.free()
            logs = rows[-1].log_softmax(-1).topk(8)
            assert places.law(path).logs == pytest.approx(logs.values.tolist(), abs=1e-3)
        text = [*text, *source.choice([(9, 10, 3), (9, 11), (12,), (4, 4)])]


def test_of_completions_of_one_prompt_one_is_read_and_the_others_copy_it():
    text, names = [number * 5 % VOCAB for number in range(41)], [f"r.{n}" for n in range(5)]
    fed = {}
    for scope in ("", "acme/r"):
        bench = Bench(Clear(), AheadRules(rows=32))
        for name in names:
            bench.open(name, **started(text, fork_scope=scope))
        while bench.core.step():
            pass
        assert all(bench.places_of(name).unseen == 0 for name in names)
        laws = [bench.places_of(name).law(()) for name in names]
        assert len({law.ids for law in laws}) == 1
        fed[scope] = sum(sum(step) for step in bench.engine.forwards)
        saved = 4 * 39 if scope else 0
        assert bench.core.progress().copied_tokens == saved
        for name in names:
            bench.close(name)
        assert bench.engine.kv_tokens_used == 0
        assert not bench.core._drafters["model"].prompts._members
    # Beside their prompts sessions are fed places, more or less of them.
    assert fed[""] - fed["acme/r"] > 3 * 39


def test_nobody_waits_for_a_session_that_the_model_has_lost():
    text, bench = [number * 5 % VOCAB for number in range(41)], Bench(rules=AheadRules(rows=8))
    for name in ("r.0", "r.1"):
        bench.open(name, **started(text, fork_scope="acme/r"))
    bench.core.step()
    bench.places_of("r.0").lost = True
    while bench.core.step():
        pass
    assert bench.places_of("r.0").unseen
    assert not bench.places_of("r.1").unseen


# --- when it goes --------------------------------------------------------------


def test_no_step_begins_that_may_make_a_verdict_wait():
    bench = Bench()
    bench.began()
    text, done = [1, 2, 3], 0
    for _ in range(4):
        bench.now += 0.020
        said = bench.engine.continuation(text, 1)
        bench.brought(done, said)
        text, done = text + said, done + 1
    # Verdicts take 20 ms, and a step 10 ms.
    bench.ahead._times = StepTimeModel().add(8, 0.010)
    steps = len(bench.engine.forwards)
    bench.now += 0.020
    bench.brought(done, [4], steps=1)
    bench.now += 0.002
    assert bench.core.step()
    bench.now += 0.013
    assert not bench.core.step()
    assert len(bench.engine.forwards) == steps + 1


def test_there_are_two_steps_for_a_verdict_and_more_for_a_long_text_alone():
    bench = Bench(rules=AheadRules(rows=4, step_tokens=4))
    bench.began([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2])
    assert [sum(batch) for batch in bench.engine.forwards[:2]] == [4, 4]
    assert len(bench.engine.forwards) == 4
    for base in range(4):
        before = len(bench.engine.forwards)
        bench.brought(base, [base])
        assert len(bench.engine.forwards) == before + 2


def test_a_verdict_is_due_when_the_quick_ones_came():
    due, now = Due(), 0.0
    assert due.within(0.0) == math.inf
    for gap in [0.03, 0.02, 0.04, 0.02, 0.02, 0.05] * 20:
        due.sent(now)
        now += gap
        due.came(now)
    due.sent(now)
    assert 0.017 < due.within(now) < 0.024
    assert due.within(now + 0.02) < 0.004
    # One that is long past comes whenever it likes, and holds up nobody.
    assert not due.stalled(now + 0.1)
    assert due.stalled(now + 1.0)
    assert due.within(now + 1.0) == math.inf
    # One that is much sooner is the new measure.
    due.came(now + 0.004)
    due.sent(now)
    assert due.within(now) == pytest.approx(0.004)


def test_as_many_rows_as_fit_into_the_time():
    times = StepTimeModel()
    assert times.most_within(0.001, 12) == 12
    for rows in (1, 4, 8, 12, 2, 6) * 5:
        times = times.add(rows, 0.005 + 0.0005 * rows)
    assert times.most_within(0.0085, 12) in (6, 7)
    assert times.most_within(0.002, 12) == 0
    assert times.most_within(math.inf, 12) == 12


def test_sessions_share_a_step_and_none_is_left_out():
    bench = Bench()
    for name in "abc":
        bench.began([1, 2, ord(name) % VOCAB], name, steps=1)
    bench.core.step()
    assert len(bench.engine.forwards[0]) == 3
    for name in "abc":
        (draft,) = bench.brought(0, [4], name=name)
        assert draft.session == name


def test_a_crowd_is_not_gone_ahead_of_and_who_stalls_gives_way():
    bench = Bench(rules=AheadRules(rows=8))
    for name in "abcd":
        bench.began([1, 2, ord(name) % VOCAB], name, steps=0)
    bench.steps(20)
    assert [name for name in "abcd" if not bench.places_of(name).unseen] == ["a", "b"]
    bench.now += 9.0
    bench.brought(0, [4], name="c")
    assert not bench.places_of("c").unseen


def test_no_token_that_the_target_has_not_is_said():
    bench, text = Bench(), [1, 2, 3]
    bench.began(text, vocab_size=5)
    for base in range(6):
        said = [bench.engine.greedy(text) % 5]
        (draft,) = bench.brought(base, said)
        text += said
        assert max(draft.tree.token_ids, default=0) < 5
        assert max(bench.places.law(()).ids, default=0) < 5


def test_a_session_that_rests_is_not_gone_ahead_of():
    bench = Bench()
    bench.began(name="r")
    before = len(bench.engine.forwards)
    bench.began([1, 2, 3], "r2", steps=0)
    bench.allow("r2", 0)
    bench.run()
    assert len(bench.engine.forwards) == before


# --- where it cannot go ----------------------------------------------------------


def test_the_model_reads_nothing_before_the_first_verdict():
    bench = Bench()
    bench.open("s", **(started([1, 2, 3]) | {"prompt": (1, 2, 3), "output": ()}))
    bench.run()
    assert bench.engine.forwards == []
    bench.brought(-1, [4])
    assert bench.places.unseen == 0


def test_without_room_for_the_model_the_trees_go_on_without_it():
    bench = Bench()
    bench.engine.budget.capacity = 20
    bench.began([1, 2, 1])
    (draft,) = bench.brought(0, [2])
    assert draft.tree.token_ids == (1,) or 1 in draft.tree.token_ids
    assert bench.places is None
    bench.close("s")
    assert bench.drafter._places == {}
    assert bench.engine.kv_tokens_used == 0


def test_a_text_that_the_model_cannot_read_is_drafted_by_the_others():
    class Small(Clear):
        vocab_size = 6

    bench = Bench(Small())
    bench.began([1, 2, 1])
    (draft,) = bench.brought(0, [9])
    assert bench.places.lost
    (draft,) = bench.brought(1, [1])
    assert 2 in draft.tree.token_ids


def test_a_text_longer_than_the_model_reads_is_drafted_by_the_others():
    bench = Bench(Clear(context=25))
    bench.began()
    for base in range(0, 12, 2):
        (draft,) = bench.brought(base, [1, 2])
    assert bench.places.lost
    assert 1 in draft.tree.token_ids


def test_a_model_that_fails_costs_its_word_and_no_session():
    bench = Bench()
    bench.began()
    bench.engine.explode = 4
    bench.brought(0, [4, 1])
    (draft,) = bench.brought(2, [2])
    assert bench.places.lost
    assert 3 in draft.tree.token_ids
    assert not bench.gone


def test_a_session_that_the_model_fails_for_costs_no_other_its_word():
    class Picky(Clear):
        def forward(self, segments):
            if any(list(segment.token_ids[:3]) == [1, 9, 3] for segment in segments):
                raise RuntimeError("the device is on fire")
            return super().forward(segments)

    bench = Bench(Picky())
    bench.began([1, 2, 3], "well", steps=0)
    bench.began([1, 9, 3], "ill")
    well, ill = bench.places_of("well"), bench.places_of("ill")
    assert (well.lost, ill.lost) == (False, True)
    assert well.unseen == 0
    assert well.law(()) is not None


def test_no_place_lies_beyond_what_the_model_reads():
    class Sure(Clear):
        @staticmethod
        def logits(text):
            return 30.0 * (torch.arange(VOCAB) == (text[-1] + 1) % 8).float()

    bench = Bench(Sure(context=40))
    bench.began()
    assert max(node.depth + 1 for node in bench.places._graph.nodes) <= DEEPEST + 1
    assert bench.places.cache.length <= 3 + DEEPEST


def test_a_link_that_breaks_frees_what_its_sessions_held():
    bench = Bench()
    bench.began()
    assert bench.engine.kv_tokens_used == 62 + PLACES_IN_KV
    bench.core.drop_link(0)
    assert bench.engine.kv_tokens_used == 0


def test_a_text_that_goes_back_is_followed():
    bench = Bench()
    bench.began()
    bench.brought(0, [4, 5])
    places = bench.places
    places.rewind(4)
    places.follow([1, 2, 3, 4])
    assert places.law(()) is None
    places.follow([1, 2, 3, 4, 6])
    bench.ahead.step([places])
    holds(bench, [1, 2, 3, 4, 6])


# --- chains, and who says so ----------------------------------------------------


@pytest.mark.parametrize("mode", [t.VerifyMode.GREEDY, *SAMPLED])
def test_chains_are_those_of_the_two_in_turn(mode):
    bench = Bench()
    drafts = bench.began(num_candidates=1, mode=mode, temperature=1.0)
    assert all(draft.tree.is_chain and not draft.reach for draft in drafts)
    assert sum(len(draft.tree) for draft in drafts) == 6
    assert bench.drafter._places == {}
    bench.brought(0, [drafts[0].tree.token_ids[0]])
    bench.close("s")
    assert bench.engine.kv_tokens_used == 0


def test_both_are_served_alone_and_together():
    worker = Bench().core.describe()
    assert worker.methods == ("ngram", "model")
    assert {f"{NAME}:estimates", "ngram:estimates"} <= set(worker.capabilities)
    assert not any(name.startswith(f"{NAME}:t") for name in worker.capabilities)


def test_coupled_trees_know_the_noise_of_the_models_candidates():
    found = set()
    for seed in range(6):
        bench = Bench()
        bench.began(mode=t.VerifyMode.COUPLED, temperature=1.0, seed=seed)
        (draft,) = bench.brought(0, bench.engine.continuation([1, 2, 3], 1))
        assert draft.sources[0] == t.DraftSource.MODEL
        found.add(draft.tree.token_ids[0])
    assert len(found) > 1
