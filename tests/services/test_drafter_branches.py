"""What the model drafter prepares in idle moments, and what becomes of it."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.contract.step_records import StepRecord
from services.contract.types import ResolvedSampling, VerifyMode
from services.drafter.methods.graph.draft_graph import ROOT
from services.drafter.methods.model.branches import PrepareFigures, PrepareRules
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.methods.ngram.ngram import NgramDrafter
from services.engine.port import Segment
from services.engine.sampling import RowContext, best, coupled_best
from tests.services.drafter_kit import (
    EXACT,
    PENALISED,
    VOCAB,
    Clear,
    FakeEngine,
    Harness,
    Worker,
    real_engine,
    tokens_of,
)
from tests.tries import tries

SOME = PrepareRules(tokens=12, rows=4)
WIDE = PrepareRules(tokens=40, rows=40, least=0.0)


def harness(engine=None, rules=SOME, **more):
    engine = engine or Clear()
    return Harness(engine, drafter=ModelDrafter(engine, prepare=rules, **more))


def drafted(rules=SOME, **changes):
    """A session on the text 1, 2, 3 that has drafted and prepared; its tail."""
    ready = harness(rules=rules)
    return ready, tokens_of(ready.drafts(**changes))


def choices(engine, text, mode=VerifyMode.GREEDY, count=3):
    """The candidates after a text, best first, as a target thinks that is much like the drafter."""
    row = RowContext(mode, ResolvedSampling(), 7, max(0, len(text) - 3))
    among = best if mode is VerifyMode.GREEDY else coupled_best
    return among(engine.logits(text)[None], [row], count)[0].tolist()


def follows(ready, draft, text):
    """Whether the draft is what the model goes on with after the text."""
    return list(draft.tree.token_ids) == ready.engine.continuation(text, len(draft.tree))


# --- what is there when a verdict comes -----------------------------------------


@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize("rank", [1, 2])
def test_a_rejection_for_another_choice_of_the_drafter_finds_the_next_draft_made(place, rank):
    ready, tail = drafted(WIDE, window=5)
    other = choices(ready.engine, [1, 2, 3, *tail[:place]])[rank]
    [draft] = ready.answered(0, [*tail[:place], other], epoch=2)
    assert ready.engine.forwards == [], "no forward was needed"
    text = [1, 2, 3, *tail[:place], other]
    assert (draft.epoch, draft.first_position) == (2, place + 1)
    assert follows(ready, draft, text)
    assert tokens_of([draft, *ready.run()]) == ready.engine.continuation(text, 5)


def test_a_bonus_that_is_another_choice_finds_the_next_draft_made():
    ready, tail = drafted(WIDE, window=2)
    bonus = choices(ready.engine, [1, 2, 3, *tail])[1]
    [draft] = ready.answered(0, [*tail, bonus])
    assert ready.engine.forwards == []
    assert follows(ready, draft, [1, 2, 3, *tail, bonus])


def test_a_draft_goes_on_beyond_its_window_and_is_sent_when_there_is_room():
    ready, tail = drafted(window=4)
    [draft] = ready.answered(0, tail[:2])
    assert ready.engine.forwards == []
    assert [*tail, *draft.tree.token_ids] == ready.engine.continuation([1, 2, 3], 6)
    assert draft.final, "the window is full again"
    assert ready.drafter.prepared.hits == 1
    assert ready.drafter.prepared.delivered == 2


def test_what_was_prepared_in_front_of_a_longer_committed_text_stays():
    ready, tail = drafted(WIDE, window=6)
    ready.commit("s", 0, tail[:2])
    text = [1, 2, 3, *tail, *tokens_of(ready.run())]
    other = choices(ready.engine, text[:7])[1]
    [draft] = ready.answered(2, [*text[5:7], other], epoch=2)
    assert ready.engine.forwards == []
    assert follows(ready, draft, [*text[:7], other])


def test_a_token_that_nobody_thought_of_feeds_itself_alone():
    ready, tail = drafted(window=5)
    known = choices(ready.engine, [1, 2, 3, *tail[:2]])
    strange = next(token for token in range(VOCAB) if token not in known)
    drafts = ready.answered(0, [*tail[:2], strange], epoch=2)
    assert ready.engine.forwards == [[1]]
    drafts += ready.run()
    assert tokens_of(drafts) == ready.engine.continuation([1, 2, 3, *tail[:2], strange], 5)


# --- what idle moments cost -----------------------------------------------------


def test_nothing_is_prepared_while_any_session_is_owed_a_draft():
    ready = harness()
    ready.open(window=2)
    ready.open("busy", [4, 5], window=9)
    for _ in range(9):
        assert ready.core.step()
    assert len(tokens_of(ready.take(), "busy")) == 9
    assert ready.drafter.prepared.steps == 0
    ready.core.step()
    assert ready.drafter.prepared.steps == 1


def test_sessions_share_a_step_and_its_rows_and_none_gets_more_than_its_share():
    ready = harness(rules=PrepareRules(tokens=6, rows=4, least=0.0))
    for name in ("a", "b", "c"):
        ready.open(name, [1, 2, len(name)], window=3)
    ready.steps(3)
    ready.engine.forwards.clear()
    ready.run()
    assert max(sum(batch) for batch in ready.engine.forwards) == 4
    assert max(len(batch) for batch in ready.engine.forwards) > 1
    # Of each session also the last token of its tail, which is not prepared.
    assert ready.drafter.prepared.fed == 3 * (6 + 1)
    assert not ready.core.step(), "it comes to rest"


def test_the_likeliest_is_fed_first_and_the_unlikely_never():
    class Sure(FakeEngine):
        """The second choice is likely after two tokens of the output, and nowhere else."""

        @staticmethod
        def logits(text):
            row = torch.full((VOCAB,), -20.0)
            row[7] = 0.0
            row[8] = -0.4 if len(text) == 5 else -9.0
            return row

    ready = harness(Sure(), PrepareRules(tokens=40, rows=1, depth=4))
    assert tokens_of(ready.drafts(window=4)) == [7, 7, 7, 7]
    assert tokens_of(ready.answered(0, [7, 7, 8], epoch=2)) == [7] * 4
    assert ready.engine.forwards == []
    ready.run()
    ready.answered(3, [8], epoch=3)
    assert ready.engine.forwards == [[1]], "an unlikely one was not prepared"


def test_prepared_tokens_are_told_apart_and_timed_as_if_they_had_been_drafted_now():
    records, ticks = list[StepRecord](), iter(range(0, 10**12, 10**6))
    drafter = ModelDrafter(Clear(), prepare=SOME)
    worker = Worker({"model": drafter}, on_step=records.append, clock=lambda: next(ticks))
    drafts = worker.drafts(window=4)
    worker.commit("s", 0, tokens_of(drafts[:2]))
    worker.core.step()
    drafts += worker.take()
    kinds = [entry.kind for record in records for entry in record.entries]
    assert kinds == [*["draft"] * 4, "prepared"]
    assert [draft.draft_ms for draft in drafts] == [1.0, 1.0, 1.0, 1.0, 2.0]


# --- where nothing is prepared --------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": VerifyMode.STANDARD},
        {"mode": VerifyMode.BLOCK},
        {"synchronous": True},
        {"num_candidates": 2},
        {"window": 0},
    ],
)
def test_nothing_is_prepared_of_draws_and_trees_and_where_nothing_is_drafted(changes):
    ready = harness()
    ready.open(**changes)
    ready.run()
    ready.commit("s", 0, [5], epoch=2)
    ready.run()
    assert ready.drafter.prepared == PrepareFigures()


def test_nothing_is_prepared_behind_the_end_of_a_text_and_its_room_is_never_exceeded():
    """The fake engine sees to the room."""
    ready, tail = drafted(WIDE, window=9, max_tokens=4)
    assert len(tail) == 4
    cache = ready.engine.caches[0]
    assert cache.length == cache.reserve == 7
    other = choices(ready.engine, [1, 2, 3])[1]
    ready.commit("s", 0, [other], epoch=2)
    drafts = ready.run()
    assert tokens_of(drafts) == ready.engine.continuation([1, 2, 3, other], 3)
    texts = {tuple(cache.text_at(node)) for node in range(cache.length)}
    assert max(map(len, texts)) <= 6, "after the last token nothing is asked"


# --- KV -------------------------------------------------------------------------

MOVES = st.lists(
    st.tuples(
        st.integers(0, 9),  # steps
        st.integers(0, 4),  # drafted tokens that the verdict accepts
        st.lists(st.integers(0, 5), max_size=3),  # ranks of the tokens behind them
        st.booleans(),  # whether the epoch goes on
    ),
    max_size=8,
)
MODES = st.sampled_from(EXACT)
LAWS = st.sampled_from(
    [
        ResolvedSampling(max_tokens=60),
        ResolvedSampling(max_tokens=60, stop_token_ids=(3, 4), min_tokens=2),
        PENALISED,
    ]
)


def verdict(ready, mode, accepted, ranks, epoch):
    """Commit some drafted tokens, and others of these ranks behind them."""
    session = ready.session
    start = 3 + session.committed_length
    fresh = session.text[start:][:accepted]
    for rank in ranks:
        text = [*session.text[:start], *fresh]
        fresh.append(choices(ready.engine, text, mode, 6)[rank])
    ready.commit("s", session.committed_length, fresh, epoch)


@pytest.mark.parametrize("mode", EXACT)
def test_penalties_count_the_text_in_front_of_each_token_that_is_prepared(mode):
    """Not the tail that the branch departs from."""
    law = {"window": 4, "mode": mode, "sampling": PENALISED}
    for place, rank in product(range(5), (1, 2)):
        ready, tail = drafted(WIDE, **law)
        plain, same = drafted(None, **law)
        assert same == tail
        text = [*tail[:place], choices_at(ready.state, tail, place)[rank]]
        prepared = tokens_of(ready.answered(0, text, epoch=2))
        plain.commit("s", 0, text, epoch=2)
        assert prepared
        assert prepared == tokens_of(plain.run())[: len(prepared)]


@tries(40)
@given(MOVES, MODES, LAWS, st.integers(1, 6), st.integers(1, 5))
def test_every_text_is_what_it_is_without_preparing(moves, mode, law, window, rows):
    made = []
    for rules in (None, PrepareRules(tokens=9, rows=rows, least=0.0)):
        ready, epoch = harness(rules=rules), 1
        ready.open(window=window, mode=mode, sampling=law)
        made.append([])
        for _, accepted, ranks, bump in moves:
            epoch += bump
            verdict(ready, mode, accepted, ranks, epoch)
            ready.run()
            made[-1].append(list(ready.session.text))
    assert made[0] == made[1]


@tries(40)
@given(MOVES, st.integers(1, 6), st.integers(1, 5))
def test_every_draft_follows_from_the_text_whenever_a_verdict_comes(moves, window, rows):
    """The laws of the fake engine depend on all that is in KV, and on its order."""
    ready, epoch = harness(rules=PrepareRules(tokens=9, rows=rows, least=0.0)), 1
    ready.open(window=window)
    session = ready.session
    for steps, accepted, ranks, bump in moves:
        for _ in range(steps):
            before = list(session.text)
            ready.core.step()
            drafted = tokens_of(ready.take())
            assert drafted == (drafted and ready.engine.continuation(before, len(drafted)))
        epoch += bump
        verdict(ready, VerifyMode.GREEDY, accepted, ranks, epoch)


@pytest.mark.parametrize("arch", ["llama", "mistral", "gemma3_text", "gpt2"])
@pytest.mark.parametrize("mode", EXACT)
def test_kv_of_a_branch_is_that_of_a_fresh_prefill(arch, mode):
    engine = real_engine(arch, kv_capacity_tokens=500)
    ready = harness(engine, PrepareRules(tokens=64, rows=32, depth=2, least=0.0))
    prompt = list(range(3, 23))
    ready.open("s", prompt, window=4, mode=mode, max_tokens=150)
    session, state = ready.session, ready.state
    for place, rank in ((1, 1), (0, 2), (3, 1), (4, 1), (2, 2)):
        ready.run()
        text, start = list(session.text), len(prompt) + session.committed_length
        level = choices_at(state, text[start:], place)
        hits = ready.drafter.prepared.hits
        fresh = (*text[start : start + place], level[rank])
        ready.commit("s", session.committed_length, fresh, session.epoch + 1)
        ready.core.step()
        assert ready.drafter.prepared.hits == hits + 1
        ready.credit("s", 40)
        ready.core.step()
        assert not state.branches.standing, "a step needs the text's K/V alone"
        fresh_cache = engine.new_cache(200)
        held = state.cache.length
        assert held >= start + place + 1
        engine.forward([Segment(fresh_cache, session.text[:held])])
        assert_same_kv(state.cache, fresh_cache, held)
        fresh_cache.free()
        ready.credit("s", 4)


def choices_at(state, tail, place):
    """The drafter's own candidates at a place of the tail, or behind it."""
    graph = state.branches._graph
    node = (ROOT, *graph.walk(tail))[place]
    return graph.tokens([below for below, _ in graph[node].below])


def assert_same_kv(one, other, length):
    memories = (one._memory, other._memory)
    stored = [
        [whole[:, :, torch.from_numpy(memory.places(0, length))] for whole in memory.extent.whole]
        for memory in memories
    ]
    for own, fresh in zip(*stored, strict=True):
        assert torch.allclose(own, fresh, atol=1e-4)


# --- faults ---------------------------------------------------------------------


def test_a_session_that_is_closed_with_branches_gives_all_of_its_room_back():
    ready = harness()
    ready.open(window=4)
    ready.steps(6)
    assert ready.state._branching
    ready.close()
    assert ready.engine.kv_tokens_used == 0
    assert not ready.core.step()


def test_no_session_is_refused_for_what_is_prepared_for_another():
    engine = Clear()
    engine.budget.capacity = 2 * 63
    ready = harness(engine, WIDE)
    ready.drafts(window=4)
    ready.open("other", [4, 5, 6], window=4)
    assert len(tokens_of(ready.run(), "other")) == 4


def test_a_verdict_of_an_old_epoch_or_a_known_one_leaves_all_as_it_is():
    ready, tail = drafted(WIDE, window=4)
    ready.commit("s", 0, tail[:1], epoch=2)
    again = tokens_of(ready.run())
    assert again == ready.engine.continuation([1, 2, 3, tail[0]], 4)
    fed = ready.drafter.prepared.fed
    ready.commit("s", 0, tail[:1], epoch=1)
    ready.commit("s", 0, tail[:1], epoch=2)
    assert tokens_of(ready.run()) == []
    assert ready.drafter.prepared.fed == fed
    other = choices(ready.engine, [1, 2, 3, *tail[:1]])[1]
    assert tokens_of(ready.answered(1, [other], epoch=3)), "the branch is there still"
    assert ready.engine.forwards == []


def test_a_step_that_fails_while_preparing_fails_no_session():
    ready = harness()
    ready.open(window=4)
    ready.steps(4)
    tail = tokens_of(ready.take())
    forward, ready.engine.forward = ready.engine.forward, broken
    assert not ready.core.step()
    assert ready.events == []
    ready.engine.forward = forward
    assert ready.drafter.prepared.fed == 0
    ready.commit("s", 0, tail[:2])
    assert tokens_of(ready.run()) == ready.engine.continuation([1, 2, 3, *tail], 2)
    assert ready.drafter.prepared.fed == 0, "it goes on without"


def test_a_method_that_drafts_in_its_place_does_not_confuse_what_is_prepared(caplog):
    """The other one's tail is not in KV, and the text departs unseen."""
    ready = harness(rules=PrepareRules(tokens=20, rows=20, least=0.0))
    worker = Worker({"ngram": NgramDrafter(2, 2), "model": ready.drafter})
    worker.open("s", range(1, 10), window=3, method="ngram,model")
    session, copied = worker.session, 0
    for epoch, token in enumerate([1, 2, 6, 7, 0, 0, 5, 6, 1, 2, 3, 9, 8, 3, 4], 2):
        worker.run()
        copied += list(session.text[-2:]) in ([4, 5], [8, 9])
        worker.commit("s", session.committed_length, [token], epoch)
    assert ready.drafter.prepared.fed > 0
    assert copied > 0
    assert not caplog.records


def broken(_):
    raise RuntimeError("the device is on fire")
