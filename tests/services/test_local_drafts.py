"""Drafts that a verifier's own process makes before a step: of its text, by any method."""

import random
from collections import Counter
from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.contract import types as t
from services.contract.errors import InvalidRequest, StartError
from services.contract.frames import DraftName, StepFrame, draft_key, step_rows
from services.contract.states import NO_STATES, StateShape
from services.contract.worker_messages import SessionStarted, StartVerify
from services.drafter.local import LocalProposer
from services.drafter.methods.eagle.eagle import EagleDrafter
from services.drafter.methods.model.ahead import AheadRules
from services.drafter.methods.model.informed import InformedDrafter
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.drafter.methods.self_draft.borrowing import Borrowing
from services.drafter.methods.self_draft.exits import Exit
from services.drafter.methods.self_draft.lookahead import LookaheadDrafter
from services.drafter.methods.self_draft.skip import SkipDrafter
from services.drafter.protocol import KVUsage, Proposed
from services.engine.lending import Ahead, Lending
from services.engine.port import Segment
from services.engine.skip_mask import SkipMask
from services.runtime.proposer import LocalAsk, Proposer
from services.runtime.step_records import StepEntry
from services.verifier.options import VerifierOptions
from services.verifier.running.core import RunningCore
from tests.services.drafter_kit import (
    EXACT,
    PROMPT,
    SAMPLED,
    FakeEngine,
    holds_as_if_fresh,
    plain_text,
    real_engine,
)
from tests.services.running_bench import Fixed
from tests.services.test_drafter_eagle import head
from tests.services.test_drafter_keys import recorded
from tests.tries import tries

KEY = (3, 8)
OF_A_START = {own.name for own in fields(StartVerify)}


def starting(prompt=(1, 2, 3), handle=8, **changes):
    own = {name: changes.pop(name) for name in list(changes) if name in OF_A_START}
    values = {"opening": 1, "session_id": "s", "term": 1, "output": (), "limit": 100}
    values |= {"mode": t.VerifyMode.GREEDY, "seed": 7, "window": 6}
    values["sampling"] = t.ResolvedSampling(**({"max_tokens": 60} | changes))
    return StartVerify(handle, prompt=tuple(prompt), **(values | own))


class Verifier:
    """Who asks for drafts of its text before its steps."""

    def __init__(self, *drafters, **options):
        names = ("a", "b", "c")
        self.proposer = LocalProposer(dict(zip(names, drafters, strict=False)), **options)
        self.texts, self.steps = {}, 0

    def open(self, key=KEY, **changes):
        opening = starting(handle=key[1], **changes)
        self.proposer.open(key, opening)
        self.texts[key] = [*opening.prompt, *opening.output]
        return self

    def ask(self, key=KEY, room=4, nodes=64, top_rows=b""):
        self.steps += 1
        name = DraftName(0, self.steps)
        text = self.texts[key]
        return LocalAsk(key, text, room, nodes, top_rows, draft_key(1, name))

    def draft(self, **asked):
        (draft,) = self.proposer.propose([self.ask(**asked)])
        return draft

    def tokens(self, **asked):
        return [*self.draft(**asked).tree.token_ids]

    def say(self, *tokens, key=KEY):
        self.texts[key] += tokens


class Scripted:
    """A method that gives what it is told to, one after the other; then tokens that count up."""

    modes = EXACT
    samples = False
    trees = True

    def __init__(self, *answers):
        self.answers = list(answers)
        self.broken = set()
        self.calls = []
        self.moments = []
        self.open_now = []

    def describe(self, worker):
        return worker

    def usage(self):
        return KVUsage()

    def open(self, key, opening):
        self.calls.append(("open", key, opening.output))
        self.open_now.append(key)

    def rewind(self, key, length):
        self.calls.append(("rewind", key, length))

    def close(self, key):
        self.open_now.remove(key)

    def propose(self, asks):
        if any(ask.key in self.broken for ask in asks):
            raise RuntimeError("broken")
        self.calls += [("ask", len(ask.text), ask.room, ask.top_rows) for ask in asks]
        return [self.answers.pop(0) if self.answers else counted(ask) for ask in asks]

    def idle(self, asks):
        self.moments.append([list(ask.text) for ask in asks])
        return True


class Stated(Scripted):
    """One that takes states of the target."""

    needed_states = StateShape((1, 2), 2)

    def anchor(self, key, position, states):
        self.calls.append(("anchor", key, position, states))


def counted(ask):
    return Proposed(t.DraftTree((len(ask.text),)))


def model(engine=None):
    return ModelDrafter(engine or FakeEngine(), step_tokens=64)


def test_a_verifier_may_draft_with_it():
    proposer: Proposer = LocalProposer({"ngram": NgramDrafter(), "model": model()})
    assert proposer.methods == {"ngram", "model"}
    able = LocalProposer({"ngram": NgramDrafter(), "model": model()}).capabilities
    assert set(t.local_methods(able)) == {"ngram", "model"}
    assert {t.tree_capability("ngram"), t.sampled_capability("model")} <= set(able)
    assert t.rows_capability("ngram") in able


# --- chains and trees ------------------------------------------------------------


@pytest.mark.parametrize(("room", "nodes", "count"), [(4, 64, 4), (4, 2, 2), (0, 64, 0)])
@pytest.mark.parametrize("mode", t.VerifyMode)
def test_a_chain_is_drafted_to_the_window_in_one_call(room, nodes, count, mode):
    engine = FakeEngine()
    drafted = Verifier(model(engine)).open(mode=mode).tokens(room=room, nodes=nodes)
    assert len(drafted) == len(engine.forwards) == count
    if mode is t.VerifyMode.GREEDY and count:
        assert drafted == engine.continuation((1, 2, 3), count)


@tries(40)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=12), st.booleans())
def test_each_draft_is_of_the_text_as_it_is_and_of_k_v_what_the_text_bears_out_stays(moves, idle):
    engine = FakeEngine()
    verifier = Verifier(model(engine)).open()
    cache = engine.caches[0]
    for room, agreed in moves:
        if idle:
            verifier.proposer.idle([verifier.ask(room=room)])
        text = list(verifier.texts[KEY])
        drafted = verifier.tokens(room=room)
        assert drafted == (engine.continuation(text, room) if room else [])
        held = cache.tokens[: cache.length]
        assert held == [*text, *drafted][: len(held)]
        verifier.say(*drafted[:agreed], 5)
        fed = engine.forwards[-1:]
        assert fed == [] or sum(fed[0]) <= 5 or len(engine.forwards) == 1


def test_a_draft_that_was_right_is_not_read_again():
    engine = FakeEngine()
    verifier = Verifier(model(engine)).open()
    drafted = verifier.tokens()
    verifier.say(*drafted[:3], 11)
    engine.forwards.clear()
    verifier.tokens()
    assert engine.forwards == [[1]] * 4


def test_a_draft_ends_behind_a_token_that_ends_the_text():
    verifier = Verifier(Scripted()).open(stop_token_ids=(5,))
    assert verifier.tokens() == [3, 4, 5]


def test_a_tree_is_grown_in_one_call_and_no_deeper_than_may_be():
    verifier = Verifier(model()).open(num_candidates=2)
    draft = verifier.draft(room=3)
    assert draft.tree.parents is not None
    assert max(t.node_depths(draft.tree.parents)) == 2
    assert verifier.texts[KEY] == [1, 2, 3]


def test_of_a_tree_as_many_nodes_are_given_as_may_be_verified():
    tree = t.DraftTree((7, 8, 9), parents=(-1, -1, 0))
    answer = Proposed(tree, reach=(0.5, 0.3, 0.2), sources=bytes((1, 2, 3)))
    verifier = Verifier(Scripted(answer)).open(num_candidates=2)
    draft = verifier.draft(nodes=2)
    assert draft[:3] == (t.DraftTree((7, 8), (-1, -1)), (0.5, 0.3), bytes((1, 2)))


def test_copies_need_no_model():
    verifier = Verifier(NgramDrafter()).open(prompt=(1, 2, 3, 4, 5, 1, 2))
    assert verifier.tokens(room=3) == [3, 4, 5]
    verifier.say(3, 9, 1, 2, 3)
    assert verifier.tokens(room=2)[:1] == [9]


def test_several_methods_take_turns():
    engine = FakeEngine()
    verifier = Verifier(NgramDrafter(), model(engine)).open(method="a,b")
    assert verifier.tokens(room=4) == engine.continuation((1, 2, 3), 4)


@pytest.mark.parametrize("mode", SAMPLED)
def test_draws_have_the_key_of_their_draft_and_no_number_comes_again(mode):
    verifier = Verifier(model()).open(mode=mode)
    choice = random.Random(4)
    with recorded() as keys:
        for _ in range(20):
            ask, before = verifier.ask(room=3), {*keys}
            (draft,) = verifier.proposer.propose([ask])
            assert draft.tree.q is not None
            assert len(draft.tree.q) == len(draft.tree) == 3
            assert {key for _, key, *_ in {*keys} - before} == {ask.draft_key}
            verifier.say(*draft.tree.token_ids[: choice.randint(0, 2)])
            verifier.say(choice.randint(0, 9))
            if len(verifier.texts[KEY]) > 55:
                break
    assert keys.total() > 20
    assert max(keys.values()) == 1


# --- what methods are asked --------------------------------------------------------


def test_sessions_of_one_method_share_its_calls():
    verifier = Verifier(model(engine := FakeEngine()), Scripted())
    for handle, method in enumerate(("a", "a", "b")):
        verifier.open((1, handle), method=method, prompt=(1, 2, handle))
    asks = [verifier.ask((1, handle), room=2) for handle in range(3)]
    drafts = verifier.proposer.propose(asks)
    assert [len(draft.tree) for draft in drafts] == [2, 2, 2]
    assert [len(fed) for fed in engine.forwards] == [2, 2]


def test_a_method_sees_the_text_grow_and_what_was_given_up():
    method = Scripted()
    verifier = Verifier(method).open()
    verifier.draft(room=2)
    verifier.say(3, 9)
    verifier.draft(room=1, top_rows=b"rows")
    key = (0, KEY)
    assert method.calls == [
        ("open", key, ()),
        ("ask", 3, 2, b""),
        ("ask", 4, 1, b""),
        ("rewind", key, 4),
        ("ask", 5, 1, b"rows"),
    ]


@pytest.mark.parametrize("answer", [Proposed(waits=True), Proposed(fed=9), Proposed(final=True)])
def test_what_waits_or_reads_or_has_nothing_ends_the_draft_of_this_step(answer):
    verifier = Verifier(method := Scripted(answer)).open()
    assert verifier.draft().tree == t.DraftTree()
    assert len([call for call in method.calls if call[0] == "ask"]) == 1
    assert verifier.tokens(room=2) == [3, 4]


def test_a_method_that_never_comes_to_an_end_is_asked_a_bounded_number_of_times():
    verifier = Verifier(method := Scripted(*[Proposed()] * 100)).open()
    assert verifier.draft(room=3).tree == t.DraftTree()
    assert len(method.calls) == 1 + 4


def test_what_fails_for_a_session_ends_its_drafts_alone():
    method = Scripted()
    verifier = Verifier(method).open((1, 1)).open((1, 2))
    method.broken.add((0, (1, 1)))

    def lengths():
        asks = [verifier.ask((1, handle), room=2) for handle in (1, 2)]
        return [len(draft.tree) for draft in verifier.proposer.propose(asks)]

    assert lengths() == [0, 2]
    method.broken.clear()
    assert lengths() == [0, 2]
    verifier.proposer.close((1, 1))
    assert method.open_now == [(0, (1, 2))]


def test_an_idle_moment_is_spent_on_the_text_as_it_is():
    verifier = Verifier(method := Scripted()).open()
    verifier.draft()
    verifier.say(8)
    assert verifier.proposer.idle([verifier.ask(room=0)])
    assert method.moments == [[[1, 2, 3, 8]]]


def test_time_is_told_with_the_draft_and_to_whoever_traces():
    records, now = [], iter(range(0, 10**9, 2_000_000))
    verifier = Verifier(Scripted(), on_step=records.append, clock=lambda: next(now))
    verifier.open(traceparent="00-ab")
    assert verifier.draft(room=3).draft_ms == pytest.approx(6.0)
    assert [record.entries for record in records] == [
        (StepEntry("s", "draft", 1, traceparent="00-ab"),)
    ] * 3


# --- sessions and states -----------------------------------------------------------


def test_a_session_that_begins_anew_is_opened_anew_and_a_closed_one_is_gone():
    method = Scripted()
    verifier = Verifier(method).open().open(opening=2, output=(7,))
    assert method.calls[-1] == ("open", (0, KEY), (7,))
    assert method.open_now == [(0, KEY)]
    verifier.proposer.close(KEY)
    verifier.proposer.close(KEY)
    assert method.open_now == []


@pytest.mark.parametrize("changes", [{"method": "z"}, {"mode": t.VerifyMode.BLOCK}])
def test_what_no_method_here_drafts_is_refused(changes):
    with pytest.raises(InvalidRequest, match="method"):
        Verifier(Scripted()).open(**changes)


def test_states_of_text_to_come_wait_for_it():
    fates = []
    verifier = Verifier(
        method := Stated(), on_states=lambda fate, size: fates.append((fate, size))
    ).open()
    anchor = verifier.proposer.anchor
    anchor(KEY, 1, bytes(8))
    verifier.draft(room=1)
    verifier.say(9)
    anchor(KEY, 3, b"abcd")
    assert ("anchor", (0, KEY), 1, bytes(8)) in method.calls
    verifier.draft(room=1)
    rewound = method.calls.index(("rewind", (0, KEY), 3))
    assert method.calls[rewound + 1] == ("anchor", (0, KEY), 3, b"abcd")
    anchor((9, 9), 0, bytes(4))
    assert fates == [("received", 8), ("received", 4), ("dropped", 4)]


def test_the_states_that_a_method_needs_are_known():
    proposer = LocalProposer({"n": NgramDrafter(), "e": Stated()})
    assert proposer.needed_states("n,e") == StateShape((1, 2), 2)
    assert proposer.needed_states("n") == proposer.needed_states("other") == NO_STATES
    other = Stated()
    other.needed_states = StateShape((4,), 2)
    with pytest.raises(StartError, match="different layers"):
        LocalProposer({"a": Stated(), "b": other})


# --- with the verifier's K/V -------------------------------------------------------


class Lender:
    """A verifier that lends the K/V of one session, whose last token is not in it yet."""

    def __init__(self, make):
        self.engine = real_engine(threads=1)
        soft = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
        self.engine.give_soft_tokens(soft)
        self.lending = lending = Lending()
        self.verifier = Verifier(make(self.engine, Borrowing(lending, self.engine)))
        self.verifier.open(prompt=PROMPT)
        self.text = self.verifier.texts[KEY]
        self.cache = self.engine.new_cache(100)
        self.offer = lending.offer(KEY, self.cache, self.text)
        self.engine.forward([Segment(self.cache, self.text[:-1])])

    def judge(self, drafted):
        """A step: what is said, greedily, of the draft and behind it."""
        right = plain_text(self.engine, self.text, len(drafted) + 1)
        agreed = 0
        while agreed < len(drafted) and drafted[agreed] == right[agreed]:
            agreed += 1
        self.cache.rollback(len(self.text) - 1)
        self.engine.forward([Segment(self.cache, [self.text[-1], *right[:agreed]])])
        self.verifier.say(*right[: agreed + 1])
        return agreed


MASK = SkipMask.of(2, attention=[1], mlp=[0])


def skipping(engine, borrowing):
    return SkipDrafter(engine, MASK, Exit(0.0, adaptive=False), borrowing=borrowing)


def looking_ahead(engine, borrowing):
    return LookaheadDrafter(engine, borrowing=borrowing, riding=False)


@pytest.mark.parametrize(("make", "least"), [(skipping, 4), (looking_ahead, 4)])
def test_a_method_drafts_from_the_verifiers_k_v_and_never_harms_it(make, least):
    lender = Lender(make)
    used = lender.engine.kv_tokens_used
    for _ in range(6):
        drafted = lender.verifier.tokens(room=4)
        assert len(drafted) == least
        assert lender.engine.kv_tokens_used <= used, "there is one copy of the text"
        lender.judge(drafted)
    holds_as_if_fresh(lender.engine, lender.cache, lender.text[:-1])
    lender.cache.free()


def test_the_first_token_of_a_look_ahead_is_the_targets_own():
    lender = Lender(looking_ahead)
    for _ in range(4):
        assert lender.judge(lender.verifier.tokens(room=3)) >= 1


def test_a_look_ahead_may_ride_on_the_verifiers_forwards():
    def riding(engine, borrowing):
        return LookaheadDrafter(engine, borrowing=borrowing)

    lender = Lender(riding)
    assert lender.verifier.tokens() == []
    lender.verifier.draft()
    soft = len(lender.engine.soft_ids)
    assert len(lender.offer.look_ahead) == soft
    lender.judge([])
    rows = torch.zeros(soft, lender.engine.vocab_size)
    rows[range(soft), [5, 6, 7]] = 9.0
    lender.offer.ahead = Ahead(len(lender.text), rows)
    assert lender.verifier.tokens(room=2) == [5, 6]


# --- in a verifier that runs -------------------------------------------------------


def written(method, mode, candidates=1, proposing=None, **heads):
    """Two sessions of a verifier that drafts by itself: outputs, drafted tokens taken, steps.

    `heads`: other ways to make the methods.
    """
    engine = real_engine(threads=1)
    engine.give_soft_tokens(torch.randn(3, 64, generator=torch.Generator().manual_seed(1)))
    lending, outputs, taken, steps = Lending(), {1: [], 2: []}, 0, 0
    drafters = (METHODS | heads)[method](engine, Borrowing(lending, engine))
    named = method if method in heads else ",".join(name for name in drafters)
    events = []
    core = RunningCore(
        engine,
        emit=lambda _, event: events.append(event),
        worker_id="v",
        options=VerifierOptions(lending=lending),
        pacing=Fixed(),
        proposer=LocalProposer(drafters, **(proposing or {})),
    )
    for handle in outputs:
        own = {"method": named, "mode": mode, "depth": 6, "max_tokens": 30}
        own |= {"num_candidates": candidates, "temperature": 1.0}
        core.handle(1, starting(PROMPT[handle:], handle, session_id=f"s{handle}", **own))
    while core.step():
        steps += 1
    for event in events:
        assert isinstance(event, SessionStarted | StepFrame), event
        for row in step_rows(event) if isinstance(event, StepFrame) else ():
            outputs[row.handle] += row.tokens
            taken += row.accepted
    return engine, outputs, taken, steps


METHODS = {
    "copies": lambda *_: {"ngram": NgramDrafter()},
    "model": lambda *_: {"model": ModelDrafter(real_engine(threads=1))},
    "skip": lambda engine, borrowing: {"skip": skipping(engine, borrowing)},
    "look-ahead": lambda engine, borrowing: {"lookahead": looking_ahead(engine, borrowing)},
    "both": lambda engine, borrowing: {
        "ngram": NgramDrafter(),
        "skip": skipping(engine, borrowing),
    },
}
LEAST = {"copies": 0, "model": 45, "skip": 5, "look-ahead": 25, "both": 5}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", EXACT)
def test_what_a_verifier_drafts_by_itself_leaves_the_text_as_it_is(method, mode):
    engine, outputs, taken, steps = written(method, mode)
    sampling = t.ResolvedSampling(temperature=1.0)
    for handle, output in outputs.items():
        assert output == plain_text(engine, PROMPT[handle:], 30, mode, sampling)
    assert taken >= LEAST[method]
    assert steps <= 30


@pytest.mark.parametrize("mode", EXACT)
def test_trees_of_its_own_leave_the_text_as_it_is(mode):
    engine, outputs, taken, _ = written("model", mode, candidates=2)
    sampling = t.ResolvedSampling(temperature=1.0)
    assert outputs[1] == plain_text(engine, PROMPT[1:], 30, mode, sampling)
    assert taken >= 25


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", SAMPLED)
def test_drawn_drafts_of_its_own_are_taken(method, mode):
    _, outputs, taken, _ = written(method, mode)
    assert [len(output) for output in outputs.values()] == [30, 30]
    assert taken >= LEAST[method]


@pytest.mark.parametrize("mode", t.VerifyMode)
@pytest.mark.parametrize("method", ["eagle", "ngram,eagle"])
def test_a_head_drafts_from_states_that_no_message_carries(tmp_path, mode, method):
    fates = Counter()

    def methods(*_):
        eagle, ngram = EagleDrafter(head(tmp_path)), NgramDrafter()
        both = InformedDrafter(ngram, eagle, AheadRules(awaited=2), name="eagle")
        return {"eagle": eagle, "ngram": ngram, "ngram,eagle": both}

    own = {"on_states": lambda fate, size: fates.update({fate: size})}
    engine, outputs, *_ = written(method, mode, proposing=own, **{method: methods})
    if mode.exact_match:
        sampling = t.ResolvedSampling(temperature=1.0)
        for handle, output in outputs.items():
            assert output == plain_text(engine, PROMPT[handle:], 30, mode, sampling)
    assert fates["received"] > 0
    assert fates["dropped"] == 0
