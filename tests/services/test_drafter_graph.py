"""The graph drafter: what its trees hold, what a step costs, and the KV behind it."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contract import types as t
from services.drafter.methods.graph.draft_graph import GraphRules
from services.drafter.methods.graph.graph import GraphDrafter
from services.drafter.methods.graph.graph_state import NODES_IN_KV
from services.engine.sampling import History, RowContext, best, coupled_best
from tests.services.drafter_kit import (
    EXACT,
    GREEDY,
    PENALISED,
    SAMPLED,
    VOCAB,
    Broken,
    FakeEngine,
    FixedGrowth,
    Harness,
    paths_of,
    real_engine,
    tokens_of,
)
from tests.tries import tries

ALL = GraphRules(sibling_share=0.0, leaf_weight=0.0, repeat=None)
"""Every candidate is a node."""
MERGING = GraphRules(max_nodes=256, sibling_share=0.0, leaf_weight=0.0, repeat=0)
PLAIN = GraphRules(max_nodes=256, sibling_share=0.0, leaf_weight=0.0, repeat=None)


class Repeating(FakeEngine):
    """What follows depends on the last token alone: every repetition may be merged."""

    @staticmethod
    def logits(text):
        return FakeEngine.logits(text[-1:])


class Graphs(Harness):
    """Sessions of trees: three candidates a node, and a window of eight."""

    def __init__(self, engine=None, growth=None, rules=ALL, **more):
        engine, growth = engine or FakeEngine(), growth or FixedGrowth()
        super().__init__(engine, drafter=GraphDrafter(engine, rules, plan=lambda: growth, **more))

    def open(self, session="s", prompt=(1, 2, 3), **changes):
        super().open(session, prompt, **({"num_candidates": 3, "window": 8} | changes))


def check(engine, draft, text, prompt=3, **session):
    """Below every node stand the first that may follow it: the best, or those of the race."""
    own = {"mode": t.VerifyMode.GREEDY, "sampling": GREEDY, "count": 3} | session
    choose = best if own["mode"] is t.VerifyMode.GREEDY else coupled_best
    history = History(text[:prompt])
    history.extend(text[prompt:])
    below = {}
    for path in paths_of(draft.tree):
        below.setdefault(path[:-1], []).append(path[-1])
    for path, tokens in below.items():
        position = len(text) - prompt + len(path)
        row = RowContext(own["mode"], own["sampling"], 7, position, history, path)
        found = choose(engine.logits([*text, *path])[None], [row], own["count"])[0]
        assert found.tolist()[: len(tokens)] == tokens


# --- what is drafted -----------------------------------------------------------------


@pytest.mark.parametrize("mode", EXACT)
@pytest.mark.parametrize("sampling", [GREEDY, PENALISED])
def test_below_every_node_stand_the_best_of_its_mode_under_every_parameter(mode, sampling):
    made = Graphs()
    draft = made.draft(mode=mode, sampling=sampling)
    assert draft.final
    assert len(draft.tree) > 20
    assert draft.tree.q is None
    expected = t.Proposal.ONE_HOT if mode is t.VerifyMode.GREEDY else t.Proposal.COUPLED
    assert draft.tree.proposal is expected
    check(made.engine, draft, [1, 2, 3], mode=mode, sampling=sampling)


def test_the_target_given_to_itself_drafts_a_path_that_is_accepted_to_full_depth():
    made = Graphs(growth=FixedGrowth(6, 4, 24), rules=GraphRules())
    assert tuple(made.engine.continuation([1, 2, 3], 6)) in paths_of(made.draft().tree)


def test_the_nodes_of_all_sessions_are_expanded_in_one_forward_each_once():
    made = Graphs(growth=FixedGrowth(3, 5))
    made.open("a", [1, 2])
    made.open("b", [3, 4, 5])
    made.run()
    assert made.engine.forwards == [[2, 3], [3, 3], [5, 5]]


def test_with_one_candidate_it_drafts_the_chain_of_the_model_and_runs_ahead():
    chains, made = Harness(), Graphs()
    drafts = made.drafts(num_candidates=1, window=10)
    assert all(draft.tree.parents is None for draft in drafts)
    assert tokens_of(drafts) == tokens_of(chains.drafts(window=10))
    assert len(made.engine.forwards) == len(chains.engine.forwards)


def test_only_what_was_committed_tells_how_good_the_candidates_are():
    plan = FixedGrowth(steps=2)
    made = Graphs(growth=plan)
    tail = tokens_of(made.drafts(num_candidates=1, window=10))
    assert (len(tail), plan.seen) == (10, [])
    draft = made.draft(opening=2)
    made.say("s", 0, paths_of(draft.tree)[1])
    made.run()
    assert plan.seen == [(0, 3), (0, 3)]


@pytest.mark.parametrize("mode", SAMPLED)
def test_no_rule_that_needs_a_law_is_served(mode):
    made = Graphs()
    made.open(mode=mode)
    assert made.gone["s"].reason is t.FailureReason.UNSUPPORTED
    assert made.core.describe().capabilities == ("model:tree", *t.LATER_FORMATS)


@pytest.mark.parametrize(
    ("changes", "depth"),
    [
        ({"window": 2}, 2),
        ({"max_tokens": 3}, 3),
        ({"prompt": [1] * 28}, 3),
        ({"window": 1}, 1),
        ({}, 4),
    ],
)
def test_depth_is_bounded_by_window_length_context_and_steps(changes, depth):
    draft = Graphs(FakeEngine(context=30)).draft(**changes)
    assert max(map(len, paths_of(draft.tree))) == depth


def test_a_tree_has_no_more_nodes_than_the_setting_and_drops_the_last():
    whole, few = Graphs().draft(), Graphs(growth=FixedGrowth(nodes=7)).draft()
    assert paths_of(few.tree) == paths_of(whole.tree)[:7]


def test_a_graph_that_is_a_chain_ends_the_turn_where_trees_were_asked_for():
    """A tree behind it would be lost with its verdict."""
    draft = Graphs(growth=FixedGrowth(steps=2)).draft(mode=t.VerifyMode.COUPLED, top_k=1)
    assert (draft.tree.parents, len(draft.tree), draft.final) == (None, 2, True)


def test_a_graph_stays_within_the_kv_that_was_reserved():
    made = Graphs(growth=FixedGrowth(5, 999), rules=GraphRules(999, 0.0, 0.0, None))
    made.drafts(max_tokens=8)
    assert made.engine.caches[0].length == 3 + 8 + NODES_IN_KV


def test_nothing_is_drafted_after_a_token_that_ends_the_text():
    stop = Graphs().draft().tree.token_ids[0]
    paths = paths_of(Graphs().draft(stop_token_ids=(stop,)).tree)
    assert (stop,) in paths
    assert not [path for path in paths if stop in path[:-1]]


def test_an_id_that_the_target_lacks_is_never_proposed():
    assert max(Graphs().draft(vocab_size=5).tree.token_ids) < 5


def test_without_a_finite_law_there_is_nothing_more_to_say():
    made = Graphs(Broken())
    assert {len(path) for path in paths_of(made.draft().tree)} == {1, 2}
    made.open("t", [1, 2, 3, 4, 5, 6])
    (draft,) = made.run()
    assert (draft.final, len(draft.tree)) == (True, 0)


# --- merging -------------------------------------------------------------------------


def merging():
    return Graphs(Repeating(), FixedGrowth(3, 99), MERGING)


def test_what_repeats_is_drafted_once_and_the_tree_is_the_same():
    plain = Graphs(Repeating(), FixedGrowth(3, 99), PLAIN)
    graph = merging()
    tree, unfolded = plain.draft(window=3), graph.draft(window=3)
    # A path that is its own repetition is never closed to a cycle, so may end early.
    assert set(paths_of(unfolded.tree)) <= set(paths_of(tree.tree))
    check(graph.engine, unfolded, [1, 2, 3])
    one, other = plain.state._graph, graph.state._graph
    assert (one.merged, other.merged > 0) == (0, True)
    assert len(other.nodes) < len(unfolded.tree)
    assert sum(map(sum, graph.engine.forwards)) < sum(map(sum, plain.engine.forwards))


def test_a_coupled_graph_merges_at_the_same_depth_alone():
    made = Graphs(Repeating(), FixedGrowth(4, 99), MERGING)
    law = t.ResolvedSampling(temperature=1.5, max_tokens=60)
    coupled = {"mode": t.VerifyMode.COUPLED, "sampling": law}
    draft = made.draft(**coupled)
    assert made.state._graph.merged > 0
    check(made.engine, draft, [1, 2, 3], **coupled)


def test_a_text_that_took_a_merged_edge_has_its_kv_repaired():
    made = merging()
    paths = paths_of(made.draft().tree)
    graph = made.state._graph
    taken = [path for path in paths if graph.real(graph.walk(path)) < len(path) - 1]
    assert taken
    for path in taken:
        made = merging()
        made.draft()
        made.say("s", 0, path)
        (after,) = made.run()
        assert after.tree == merging().draft(output=path).tree
        assert made.engine.caches[0].tokens[: 3 + len(path)] == [1, 2, 3, *path]


# --- after a verdict -----------------------------------------------------------------


def test_kv_of_an_accepted_path_is_used_again_whatever_branch_it_took():
    for which in range(12):
        made = Graphs()
        paths = paths_of(made.draft().tree)
        path = [path for path in paths if len(path) == 3][which]
        other = next(token for token in range(VOCAB) if (*path, token) not in paths)
        made.engine.forwards.clear()
        made.say("s", 0, [*path, other])
        (after,) = made.run()
        assert made.engine.forwards[0][0] <= 2, "the path's end may never have been expanded"
        assert after.tree == Graphs().draft(output=(*path, other)).tree


@pytest.mark.parametrize("mode", EXACT)
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_text_that_takes_a_branch_while_the_graph_grows_keeps_what_is_below_it(mode, rank):
    made = Graphs(growth=FixedGrowth(4, 99))
    made.open(mode=mode)
    made.steps(2)
    graph = made.state._graph
    token = graph[graph[-1].below[rank][0]].token
    made.say("s", 0, [token])
    made.engine.forwards.clear()
    (draft,) = made.run()
    assert made.engine.forwards[0] == [3], "what was drafted below the branch goes on"
    check(made.engine, draft, [1, 2, 3, token], mode=mode)
    assert max(map(len, paths_of(draft.tree))) == 4, "as deep as one that starts there"


def test_a_larger_window_on_the_same_text_sends_the_same_tree_without_a_forward():
    made = Graphs()
    first = made.draft()
    made.engine.forwards.clear()
    made.allow("s", 9)
    (again,) = made.run()
    assert (again.tree, made.engine.forwards) == (first.tree, [])
    assert again.name > first.name
    made.allow("s", 1)
    made.allow("s", 2)
    (shallow,) = made.run()
    assert set(paths_of(shallow.tree)) == {p for p in paths_of(first.tree) if len(p) <= 2}


@pytest.mark.parametrize("changes", [{}, {"frequency_penalty": 2.0, "repetition_penalty": 2.0}])
def test_a_tail_that_is_replaced_takes_the_graph_in_front_of_it_along(changes):
    made, chain = Graphs(), {"num_candidates": 1, "window": 10} | changes
    made.open(**chain)
    while len(tail := made.session.text[3:]) < 8:
        made.core.step()
    text = (*tail[:5], (tail[5] + 1) % VOCAB)
    made.say("s", 0, text)
    made.drafted()
    assert tokens_of(made.run()) == tokens_of(Graphs().drafts(**chain, output=text))


@pytest.mark.parametrize("arch", ["llama", "mistral", "gemma2", "gpt2"])
@pytest.mark.parametrize("mode", EXACT)
def test_on_real_models_kv_after_any_branch_gives_the_draft_of_a_fresh_prefill(arch, mode):
    engine, random = real_engine(arch, kv_capacity_tokens=2000), Random(arch)
    made, prompt = Graphs(engine, FixedGrowth(3, 4)), [random.randrange(320) for _ in range(15)]
    opening = {"mode": mode, "vocab_size": 320, "window": 6}
    made.open("s", prompt, **opening)
    text = []
    for _ in range(5):
        (draft,) = made.run()
        fresh = Graphs(engine, FixedGrowth(3, 4))
        fresh.open("f", prompt, output=tuple(text), **opening)
        (expected,) = fresh.run()
        assert draft.tree == expected.tree
        fresh.core.drop_link(0)
        path = random.choice(paths_of(draft.tree))
        other = next(token for token in range(320) if (*path, token) not in paths_of(draft.tree))
        made.say("s", len(text), [*path, other])
        text += [*path, other]


# --- any interleaving ----------------------------------------------------------------

COMMITS = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.integers(0, 30),
        st.integers(0, 4),
        st.lists(st.integers(0, VOCAB - 1), max_size=2),
        st.integers(0, 6),
    ),
    max_size=10,
)


def check_kv(engine, made):
    session, text = made.state, made.session.text
    cache, root = engine.caches[0], session._root
    for entry, node in enumerate(session._in_kv):
        path = session._graph.tokens(session._graph.path(node))
        assert cache.text_at(root + entry) == [*text[:root], *path]


@tries(150)
@given(st.data())
def test_after_any_steps_and_rollbacks_drafts_and_kv_are_those_of_the_text(data):
    engine = data.draw(st.sampled_from([FakeEngine, Repeating]))()
    mode = data.draw(st.sampled_from(EXACT))
    count = data.draw(st.integers(1, 3))
    repeat = data.draw(st.sampled_from([None, 0, 1]))
    rules = GraphRules(data.draw(st.integers(1, 40)), 0.0, 0.0, repeat)
    growth = FixedGrowth(data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6)), 30)
    made = Graphs(engine, growth, rules, step_tokens=data.draw(st.integers(1, 8)))
    law = {"mode": mode, "sampling": PENALISED}
    made.open(num_candidates=count, **law)
    session, sent = made.session, [()]
    right = repeat is None
    for steps, which, agreed, other, window in data.draw(COMMITS):
        for _ in range(steps):
            before = list(session.text)
            known = session.committed_length
            made.core.step()
            for draft in made.drafted():
                text = before[: 3 + draft.position]
                assert draft.hash == t.extend_hash(t.EMPTY_HASH, text[3:])
                if right:
                    check(engine, draft, text, **law, count=count)
                tail = tuple(text[3 + known :])
                sent = [(*tail, *path) for path in paths_of(draft.tree)] or [tail]
            check_kv(engine, made)
        tokens = [*sent[which % len(sent)][:agreed], *other]
        made.say("s", session.committed_length, tokens)
        made.allow("s", window)
        sent = [tuple(session.text[3 + session.committed_length :])]
