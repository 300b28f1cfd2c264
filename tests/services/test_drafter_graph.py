"""The graph drafter: what its trees hold, what a step costs, and the KV behind it."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from services.contract import types as t
from services.drafter.methods.graph.draft_graph import GraphRules
from services.drafter.methods.graph.graph import GraphDrafter
from services.drafter.methods.graph.graph_state import NODES_IN_KV, GraphSession
from services.engine.native import NativeEngine
from services.engine.sampling import History, RowContext, best, coupled_best
from services.engine.spec import ModelSpec
from tests.models import tiny_model
from tests.services.drafter_kit import VOCAB, FakeEngine, FixedGrowth, Harness, tokens_of

ALL = GraphRules(sibling_share=0.0, leaf_weight=0.0, repeat=None)
"""Every candidate is a node."""
EXACT = (t.VerifyMode.GREEDY, t.VerifyMode.COUPLED)
PENALISED = t.ResolvedSampling(
    max_tokens=60, temperature=0.8, frequency_penalty=0.7, repetition_penalty=1.3
)


class Repeating(FakeEngine):
    """What follows depends on the last token alone: every repetition may be merged."""

    @staticmethod
    def logits(text: Sequence[int]) -> Tensor:
        return FakeEngine.logits(text[-1:])


def harness(
    engine: FakeEngine | NativeEngine | None = None,
    growth: FixedGrowth | None = None,
    rules: GraphRules = ALL,
    **more: Any,
) -> Harness:
    engine, growth = engine or FakeEngine(), growth or FixedGrowth()
    drafter = GraphDrafter(engine, rules, plan=lambda: growth, **more)
    return Harness(engine, drafter=drafter)


def open_graph(made: Harness, prompt: Sequence[int] = (1, 2, 3), **changes: Any) -> None:
    made.open("s", prompt, **{"num_candidates": 3, "window": 8, **changes})


def drafter_of(made: Harness) -> GraphDrafter:
    assert isinstance(made.drafter, GraphDrafter)
    return made.drafter


def session_of(made: Harness) -> GraphSession:
    session = made.drafter._sessions[0, "s"]
    assert isinstance(session, GraphSession)
    return session


def paths_of(tree: t.DraftTree) -> list[tuple[int, ...]]:
    """The tokens from the text down to each node."""
    parents = tree.parents if tree.parents is not None else range(-1, len(tree) - 1)
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.token_ids, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def candidates(
    engine: Any, text: Sequence[int], path: tuple[int, ...], prompt: int, **session: Any
) -> tuple[int, ...]:
    """What may follow a path: the best, or the first finishers of the race."""
    history = History(text[:prompt])
    history.extend(text[prompt:])
    position = len(text) - prompt + len(path)
    row = RowContext(session["mode"], session["sampling"], 7, position, history, path)
    choose = best if session["mode"] is t.VerifyMode.GREEDY else coupled_best
    return tuple(choose(engine.logits([*text, *path])[None], [row], session["count"])[0].tolist())


def check(
    engine: Any, draft: t.Draft, text: Sequence[int], prompt: int = 3, **session: Any
) -> None:
    """Below every node stand the first of its candidates, in order."""
    own = {"mode": t.VerifyMode.GREEDY, "sampling": t.ResolvedSampling(max_tokens=60), "count": 3}
    own |= session
    below: dict[tuple[int, ...], list[int]] = {}
    for path in paths_of(draft.tree):
        below.setdefault(path[:-1], []).append(path[-1])
    for path, tokens in below.items():
        assert candidates(engine, text, path, prompt, **own)[: len(tokens)] == tuple(tokens)


# --- what is drafted -----------------------------------------------------------------


@pytest.mark.parametrize("mode", EXACT)
@pytest.mark.parametrize("sampling", [t.ResolvedSampling(max_tokens=60), PENALISED])
def test_below_every_node_stand_the_best_of_its_mode_under_every_parameter(mode, sampling):
    made = harness()
    open_graph(made, mode=mode, sampling=sampling)
    (draft,) = made.run()
    assert draft.final
    assert len(draft.tree) > 20
    assert draft.tree.q is None
    expected = t.Proposal.ONE_HOT if mode is t.VerifyMode.GREEDY else t.Proposal.COUPLED
    assert draft.tree.proposal is expected
    check(made.engine, draft, [1, 2, 3], mode=mode, sampling=sampling)


def test_the_target_given_to_itself_drafts_a_path_that_is_accepted_to_full_depth():
    made = harness(growth=FixedGrowth(6, 4, 24), rules=GraphRules())
    open_graph(made)
    (draft,) = made.run()
    assert tuple(made.engine.continuation([1, 2, 3], 6)) in paths_of(draft.tree)


def test_the_nodes_of_all_sessions_are_expanded_in_one_forward_each_once():
    made = harness(growth=FixedGrowth(3, 5))
    for name, prompt in (("a", [1, 2]), ("b", [3, 4, 5])):
        made.open(name, prompt, num_candidates=3, window=8)
    made.run()
    assert made.engine.forwards == [[2, 3], [3, 3], [5, 5]]
    figures = drafter_of(made).figures
    assert (figures.steps, figures.expanded, figures.made) == (6, 16, 54)


def test_with_one_candidate_it_drafts_the_chain_of_the_model_and_runs_ahead():
    chains, made = Harness(FakeEngine()), harness()
    for one in (chains, made):
        one.open("s", [1, 2, 3], window=10)
    drafts = made.run()
    assert all(draft.tree.parents is None for draft in drafts)
    assert tokens_of(drafts) == tokens_of(chains.run())
    assert len(made.engine.forwards) == len(chains.engine.forwards)


def test_only_what_was_committed_tells_how_good_the_candidates_are():
    plan = FixedGrowth(steps=2)
    made = harness(growth=plan)
    made.open("s", [1, 2, 3], window=10)
    tail = tokens_of(made.run())
    assert (len(tail), plan.seen) == (10, [])
    open_graph(made, epoch=2)
    (draft,) = made.run()
    made.commit("s", 0, paths_of(draft.tree)[1], epoch=3)
    made.run()
    assert plan.seen == [(0, 3), (0, 3)]


@pytest.mark.parametrize("mode", [t.VerifyMode.STANDARD, t.VerifyMode.BLOCK])
def test_no_rule_that_needs_a_law_is_served(mode):
    made = harness()
    open_graph(made, mode=mode)
    (failed,) = made.events
    assert isinstance(failed, t.SessionFailed)
    assert failed.reason is t.FailureReason.UNSUPPORTED
    assert made.core.describe().capabilities == ("model:tree",)


@pytest.mark.parametrize(
    ("changes", "depth"),
    [
        ({"window": 2}, 2),
        ({"sampling": t.ResolvedSampling(max_tokens=3)}, 3),
        ({"prompt": [1] * 28}, 3),
        ({"window": 1}, 1),
        ({}, 4),
    ],
)
def test_depth_is_bounded_by_window_length_context_and_steps(changes, depth):
    made = harness(FakeEngine(context=30))
    open_graph(made, **changes)
    (draft,) = made.run()
    assert max(map(len, paths_of(draft.tree))) == depth


def test_a_tree_has_no_more_nodes_than_the_setting_and_drops_the_last():
    whole, capped = harness(), harness(growth=FixedGrowth(nodes=7))
    for made in (whole, capped):
        open_graph(made)
    (all_of,), (few,) = whole.run(), capped.run()
    assert paths_of(few.tree) == paths_of(all_of.tree)[:7]


def test_a_graph_that_is_a_chain_ends_the_turn_where_trees_were_asked_for():
    """A tree behind it would be lost with its verdict."""
    made = harness(growth=FixedGrowth(steps=2))
    open_graph(made, mode=t.VerifyMode.COUPLED, sampling=t.ResolvedSampling(max_tokens=60, top_k=1))
    (draft,) = made.run()
    assert (draft.tree.parents, len(draft.tree), draft.final) == (None, 2, True)


def test_a_graph_stays_within_the_kv_that_was_reserved():
    made = harness(growth=FixedGrowth(5, 999), rules=GraphRules(999, 0.0, 0.0, None))
    open_graph(made, sampling=t.ResolvedSampling(max_tokens=8))
    made.run()
    assert made.engine.caches[0].length == 3 + 8 + NODES_IN_KV


def test_nothing_is_drafted_after_a_token_that_ends_the_text():
    free = harness()
    open_graph(free)
    (draft,) = free.run()
    stop = draft.tree.token_ids[0]
    made = harness()
    open_graph(made, sampling=t.ResolvedSampling(max_tokens=60, stop_token_ids=(stop,)))
    (draft,) = made.run()
    paths = paths_of(draft.tree)
    assert (stop,) in paths
    assert not [path for path in paths if stop in path[:-1]]


def test_an_id_that_the_target_lacks_is_never_proposed():
    made = harness()
    open_graph(made, vocab_size=5)
    (draft,) = made.run()
    assert max(draft.tree.token_ids) < 5


def test_without_a_finite_law_there_is_nothing_more_to_say():
    class Broken(FakeEngine):
        @staticmethod
        def logits(text: Sequence[int]) -> Tensor:
            row = FakeEngine.logits(text)
            return row if len(text) < 5 else row * torch.nan

    made = harness(Broken())
    open_graph(made)
    (draft,) = made.run()
    assert {len(path) for path in paths_of(draft.tree)} == {1, 2}
    made.open("t", [1, 2, 3, 4, 5, 6], num_candidates=3)
    (draft,) = made.run()
    assert (draft.final, len(draft.tree)) == (True, 0)


# --- merging -------------------------------------------------------------------------


def test_what_repeats_is_drafted_once_and_the_tree_is_the_same():
    rules = GraphRules(max_nodes=256, sibling_share=0.0, leaf_weight=0.0, repeat=None)
    plain = harness(Repeating(), FixedGrowth(3, 99), rules)
    merging = GraphRules(max_nodes=256, sibling_share=0.0, leaf_weight=0.0, repeat=0)
    graph = harness(Repeating(), FixedGrowth(3, 99), merging)
    for made in (plain, graph):
        open_graph(made, window=3)
    (tree,), (unfolded,) = plain.run(), graph.run()
    # A path that is its own repetition is never closed to a cycle, so may end early.
    assert set(paths_of(unfolded.tree)) <= set(paths_of(tree.tree))
    check(graph.engine, unfolded, [1, 2, 3])
    one, other = drafter_of(plain).figures, drafter_of(graph).figures
    assert one.merged == one.copied == 0
    assert other.merged > 0
    assert other.expanded < one.expanded
    assert other.copied > 0
    assert other.made + other.copied >= len(unfolded.tree)


def test_a_coupled_graph_merges_at_the_same_depth_alone():
    made = harness(Repeating(), FixedGrowth(4, 99), GraphRules(256, 0.0, 0.0, repeat=0))
    sampling = t.ResolvedSampling(temperature=1.5, max_tokens=60)
    open_graph(made, mode=t.VerifyMode.COUPLED, sampling=sampling)
    (draft,) = made.run()
    assert drafter_of(made).figures.merged > 0
    check(made.engine, draft, [1, 2, 3], mode=t.VerifyMode.COUPLED, sampling=sampling)


def test_a_text_that_took_a_merged_edge_has_its_kv_repaired():
    growth, rules = FixedGrowth(3, 99), GraphRules(256, 0.0, 0.0, repeat=0)
    made = harness(Repeating(), growth, rules)
    open_graph(made)
    (draft,) = made.run()
    graph = session_of(made)._graph
    taken = [path for path in paths_of(draft.tree) if graph.real(graph.walk(path)) < len(path) - 1]
    assert taken
    for path in taken:
        made, fresh = harness(Repeating(), growth, rules), harness(Repeating(), growth, rules)
        open_graph(made)
        made.run()
        made.commit("s", 0, path)
        (after,) = made.run()
        assert drafter_of(made).figures.repaired == 1
        open_graph(fresh, committed=path)
        (expected,) = fresh.run()
        assert after.tree == expected.tree
        assert made.engine.caches[0].tokens[: 3 + len(path)] == [1, 2, 3, *path]


# --- after a verdict -----------------------------------------------------------------


def test_kv_of_an_accepted_path_is_used_again_whatever_branch_it_took():
    for which in range(12):
        made, fresh = harness(), harness()
        open_graph(made)
        (draft,) = made.run()
        path = [path for path in paths_of(draft.tree) if len(path) == 3][which]
        other = next(token for token in range(VOCAB) if (*path, token) not in paths_of(draft.tree))
        made.engine.forwards.clear()
        made.commit("s", 0, [*path, other], epoch=2)
        (after,) = made.run()
        assert made.engine.forwards[0][0] <= 2, "the path's end may never have been expanded"
        open_graph(fresh, committed=(*path, other))
        (expected,) = fresh.run()
        assert (after.tree, after.epoch) == (expected.tree, 2)


@pytest.mark.parametrize("mode", EXACT)
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_text_that_takes_a_branch_while_the_graph_grows_keeps_what_is_below_it(mode, rank):
    made = harness(growth=FixedGrowth(4, 99))
    open_graph(made, mode=mode)
    made.core.step()
    made.core.step()
    graph = session_of(made)._graph
    token = graph[graph[-1].below[rank][0]].token
    made.commit("s", 0, [token], epoch=2)
    made.engine.forwards.clear()
    (draft,) = made.run()
    assert made.engine.forwards[0] == [3], "what was drafted below the branch goes on"
    assert drafter_of(made).figures.kept == 1
    check(made.engine, draft, [1, 2, 3, token], mode=mode)
    assert max(map(len, paths_of(draft.tree))) == 4, "as deep as one that starts there"


def test_a_new_turn_on_the_same_text_sends_the_same_tree_without_a_forward():
    made = harness()
    open_graph(made)
    (first,) = made.run()
    made.engine.forwards.clear()
    made.credit("s", 8)
    (again,) = made.run()
    assert (again.tree, made.engine.forwards) == (first.tree, [])
    made.credit("s", 2)
    (shallow,) = made.run()
    assert set(paths_of(shallow.tree)) == {p for p in paths_of(first.tree) if len(p) <= 2}


@pytest.mark.parametrize(
    "sampling",
    [
        t.ResolvedSampling(max_tokens=60),
        t.ResolvedSampling(max_tokens=60, frequency_penalty=2.0, repetition_penalty=2.0),
    ],
)
def test_a_tail_that_is_replaced_takes_the_graph_in_front_of_it_along(sampling):
    made, fresh = harness(), harness()
    made.open("s", [1, 2, 3], window=10, sampling=sampling)
    while len(tail := session_text(made)[3:]) < 8:
        made.core.step()
    text = [*tail[:5], (tail[5] + 1) % VOCAB]
    made.commit("s", 0, text, epoch=2)
    made.take()
    fresh.open("s", [1, 2, 3], window=10, committed=tuple(text), sampling=sampling)
    assert tokens_of(made.run()) == tokens_of(fresh.run())


def session_text(made: Harness) -> list[int]:
    return made.core._entries[0, "s"].session.text


def test_a_failure_of_one_session_leaves_the_others_their_graphs():
    made, alone = harness(), harness()
    for name, prompt in (("a", [1, 2]), ("b", [3, 4])):
        made.open(name, prompt, num_candidates=2, window=4)
    made.core.step()
    bad = made.drafter._sessions[0, "b"]
    assert isinstance(bad, GraphSession)
    bad.places = lambda ask: 1 / 0
    made.run()
    alone.open("a", [1, 2], num_candidates=2, window=4)
    good = made.drafter._sessions[0, "a"]
    assert isinstance(good, GraphSession)
    assert list(made.drafter._sessions) == [(0, "a")]
    made.credit("a", 4)
    (draft,) = made.run()
    check(made.engine, draft, [1, 2], 2, count=2)


def test_close_gives_back_the_kv_of_text_and_graph():
    made = harness()
    open_graph(made)
    assert made.engine.kv_tokens_used == 3 + 60 + NODES_IN_KV
    made.run()
    made.core.drop_link(0)
    assert made.engine.kv_tokens_used == 0


@pytest.mark.parametrize("arch", ["llama", "mistral", "gemma2", "gpt2"])
@pytest.mark.parametrize("mode", EXACT)
def test_on_real_models_kv_after_any_branch_gives_the_draft_of_a_fresh_prefill(arch, mode):
    engine = NativeEngine.from_model(
        tiny_model(arch), spec=ModelSpec(arch, kv_capacity_tokens=2000)
    )
    random = Random(arch)
    made, prompt = harness(engine, FixedGrowth(3, 4)), [random.randrange(320) for _ in range(15)]
    opening: dict[str, Any] = {"mode": mode, "num_candidates": 3, "vocab_size": 320}
    made.open("s", prompt, **opening)
    text: list[int] = []
    for round_ in range(5):
        (draft,) = made.run()
        fresh = harness(engine, FixedGrowth(3, 4))
        fresh.open("f", prompt, committed=tuple(text), **opening)
        (expected,) = fresh.run()
        assert draft.tree == expected.tree
        fresh.core.drop_link(0)
        path = random.choice(paths_of(draft.tree))
        other = next(token for token in range(320) if (*path, token) not in paths_of(draft.tree))
        made.commit("s", len(text), [*path, other], epoch=round_ + 2)
        text += [*path, other]


# --- any interleaving ----------------------------------------------------------------

COMMITS = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.integers(0, 30),
        st.integers(0, 4),
        st.lists(st.integers(0, VOCAB - 1), max_size=2),
        st.booleans(),
        st.integers(0, 6),
    ),
    max_size=10,
)


def check_kv(engine: FakeEngine, made: Harness) -> None:
    """Every entry of KV was computed after the text, or after its node's own path."""
    session, text = session_of(made), session_text(made)
    cache, root = engine.caches[0], session._root
    held = text[: min(root, cache.length)]
    assert cache.tokens[: len(held)] == held
    assert cache.length <= root or cache.length == root + len(session._in_kv)
    for entry, node in enumerate(session._in_kv):
        path = session._graph.tokens(session._graph.path(node))
        assert cache.text_at(root + entry) == [*text[:root], *path]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_after_any_commits_and_rollbacks_drafts_and_kv_are_those_of_the_text(data):
    engine = data.draw(st.sampled_from([FakeEngine, Repeating]))()
    mode = data.draw(st.sampled_from(EXACT))
    count = data.draw(st.integers(1, 3))
    repeat = data.draw(st.sampled_from([None, 0, 1]))
    rules = GraphRules(data.draw(st.integers(1, 40)), 0.0, 0.0, repeat)
    growth = FixedGrowth(data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6)), 30)
    made = harness(engine, growth, rules, step_tokens=data.draw(st.integers(1, 8)))
    open_graph(made, mode=mode, num_candidates=count, sampling=PENALISED)
    epoch, sent = 1, [()]
    right = repeat is None
    for steps, which, agreed, other, bump, window in data.draw(COMMITS):
        for _ in range(steps):
            before = list(session_text(made))
            committed = made.core._entries[0, "s"].session.committed_length
            made.core.step()
            for draft in made.take():
                assert draft.prefix_hash == t.extend_hash(t.EMPTY_HASH, before[3:])
                if right:
                    check(engine, draft, before, mode=mode, sampling=PENALISED, count=count)
                tail = tuple(before[3 + committed :])
                sent = [(*tail, *path) for path in paths_of(draft.tree)] or [tail]
            check_kv(engine, made)
        epoch += bump
        committed = made.core._entries[0, "s"].session.committed_length
        tokens = [*sent[which % len(sent)][:agreed], *other]
        made.commit("s", committed, tokens, epoch)
        made.credit("s", window)
        tail = tuple(session_text(made)[3 + made.core._entries[0, "s"].session.committed_length :])
        sent = [tail]
