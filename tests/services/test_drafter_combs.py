"""Drafts with several candidates per node: their shape, order, bounds, and the KV behind them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.contract import types as t
from services.engine.sampling import History, RowContext, best, coupled_best, top_law
from tests.services.drafter_kit import (
    EXACT,
    GREEDY,
    PENALISED,
    SAMPLED,
    VOCAB,
    Broken,
    FakeEngine,
    Harness,
    tokens_of,
)
from tests.tries import tries


def levels_of(tree):
    """Candidates per node that has some, from the root down; asserts that it is a comb."""
    levels = {}
    for token, parent in zip(tree.token_ids, tree.every_parent, strict=True):
        levels.setdefault(parent, []).append(token)
    trunk, first = [-1], 0
    for level in levels.values():
        trunk.append(first)
        first += len(level)
    assert list(levels) == trunk[:-1]
    return [tuple(level) for level in levels.values()]


def trunk_of(tree):
    return [level[0] for level in levels_of(tree)]


def check(engine, draft, text, mode=t.VerifyMode.GREEDY, sampling=GREEDY, count=3):
    """Every level follows from the text, a prompt of three tokens first, and the trunk.

    It holds candidates in their order, or some of those with mass, whose law is sent.
    """
    choose = best if mode is t.VerifyMode.GREEDY else coupled_best
    history = History(text[:3])
    history.extend(text[3:])
    path = ()
    for depth, level in enumerate(levels_of(draft.tree)):
        row = RowContext(mode, sampling, 7, len(text) - 3 + depth, history, path)
        logits = engine.logits([*text, *path])[None]
        if mode in SAMPLED:
            ids, q = (part[0] for part in top_law(logits, [row], VOCAB))
            law = t.SparseRow(tuple(ids[q > 0].tolist()), tuple(q[q > 0].tolist()))
            assert draft.tree.q[depth] == law
            assert len(level) == min(count, len(law.token_ids)) == len(set(level))
        else:
            found = choose(logits, [row], count)[0].tolist()
            assert level == tuple(token for token in found if token >= 0)
        path = (*path, level[0])


def opened(engine=None, steps=0, step_tokens=64, q_top=64, **changes):
    """A tree of three candidates for each of four tokens, after so many steps."""
    harness = Harness(engine, step_tokens, q_top)
    harness.open(**({"num_candidates": 3, "window": 4} | changes))
    harness.steps(steps)
    return harness


def drawn(engine=None, **changes):
    """The only draft of a session that was just opened."""
    (draft,) = opened(engine, **changes).run()
    return draft


# --- shape and order ---------------------------------------------------------------


def test_a_greedy_tree_holds_the_best_of_every_trunk_node_and_feeds_the_trunk_alone():
    harness = opened()
    (draft,) = harness.run()
    assert draft.final
    assert draft.tree.parents == (-1, -1, -1, 0, 0, 0, 3, 3, 3, 6, 6, 6)
    assert (draft.tree.proposal, draft.tree.q) == (t.Proposal.ONE_HOT, None)
    assert harness.engine.forwards == [[3], [1], [1], [1]]
    text = [1, 2, 3]
    for level in levels_of(draft.tree):
        assert level == tuple(harness.engine.logits(text).topk(3).indices.tolist())
        text.append(level[0])


@pytest.mark.parametrize("mode", list(t.VerifyMode))
def test_every_level_is_that_of_its_mode_under_every_parameter(mode):
    draft = drawn(mode=mode, sampling=PENALISED)
    assert len(levels_of(draft.tree)) == 4
    assert draft.tree.without_replacement == (mode in SAMPLED)
    check(FakeEngine(), draft, [1, 2, 3], mode, PENALISED)


def test_the_children_of_a_coupled_node_begin_with_the_chain_it_would_draft():
    coupled = {"mode": t.VerifyMode.COUPLED, "temperature": 1.5}
    draft = drawn(**coupled)
    assert trunk_of(draft.tree) == tokens_of(opened(**coupled, num_candidates=1).run())
    assert draft.tree.proposal is t.Proposal.COUPLED


@pytest.mark.parametrize(
    ("changes", "depth", "width"),
    [
        ({"window": 7}, 7, 3),
        ({"window": 60, "num_candidates": 10}, 25, 10),
        ({"window": 60, "num_candidates": 64}, 21, 12),
        ({"max_tokens": 2}, 2, 3),
        ({"prompt": [1] * 28}, 3, 3),
    ],
)
def test_depth_is_bounded_by_window_nodes_length_and_context(changes, depth, width):
    draft = drawn(FakeEngine(context=30), **changes)
    assert [len(level) for level in levels_of(draft.tree)] == [width] * depth
    assert len(draft.tree) <= 256


def test_a_law_with_little_support_has_fewer_children():
    tree = drawn(mode=t.VerifyMode.BLOCK, top_k=2, num_candidates=5).tree
    assert [len(level) for level in levels_of(tree)] == [2] * 4
    assert [len(row.token_ids) for row in tree.q or ()] == [2] * 4


@pytest.mark.parametrize("mode", [mode for mode in t.VerifyMode if mode is not t.VerifyMode.GREEDY])
def test_a_tree_with_one_candidate_everywhere_is_a_chain_and_becomes_text(mode):
    narrow = opened(mode=mode, top_k=1)
    expected = tokens_of(opened(mode=mode, top_k=1, num_candidates=1).run())
    (draft,) = narrow.run()
    assert (draft.tree.parents, list(draft.tree.token_ids)) == (None, expected)
    assert narrow.session.text == [1, 2, 3, *expected]


def test_a_stop_token_ends_the_trunk_with_its_siblings_and_a_leaf_ends_nothing():
    free = drawn().tree
    levels = levels_of(free)
    for stop, kept in ((levels[2][0], 3), (levels[1][1], 4)):
        assert stop not in trunk_of(free)[: kept - 1]
        assert levels_of(drawn(stop_token_ids=(stop,)).tree) == levels[:kept]


@pytest.mark.parametrize("mode", list(t.VerifyMode))
def test_a_row_without_a_finite_law_sends_the_levels_before_it(mode):
    draft = drawn(Broken(), mode=mode)
    assert (len(levels_of(draft.tree)), draft.final) == (2, True)


# --- while it is built -------------------------------------------------------------


def timed(harness):
    """Every look at its clock takes a millisecond."""
    clock = iter(range(0, 10**12, 10**6))
    harness.core._clock = lambda: next(clock)
    return harness


def test_nothing_is_said_until_the_tree_is_whole_and_its_time_is_told_then():
    harness = timed(opened())
    for _ in range(3):
        harness.core.step()
        assert harness.drafted() == []
    harness.core.step()
    (draft,) = harness.drafted()
    assert draft.draft_ms == pytest.approx(4.0)


def test_the_time_of_a_prompt_that_enters_in_chunks_is_not_the_drafts():
    harness = timed(opened(step_tokens=2, prompt=[1] * 9, window=2))
    (draft,) = harness.run()
    assert harness.engine.forwards == [[2], [2], [2], [2], [1], [1]]
    assert draft.draft_ms == pytest.approx(2.0)


def test_a_credit_in_the_middle_changes_the_depth_and_redraws_nothing():
    halted = opened(mode=t.VerifyMode.STANDARD, steps=2)
    halted.allow("s", 0)
    assert halted.run() == []
    halted.allow("s", 3)
    (draft,) = halted.run()
    assert levels_of(draft.tree) == levels_of(drawn(mode=t.VerifyMode.STANDARD).tree)[:3]
    assert halted.engine.forwards == [[3], [1], [1]]


def test_a_smaller_window_cuts_what_is_built():
    harness = opened(mode=t.VerifyMode.BLOCK, steps=3)
    harness.allow("s", 1)
    (draft,) = harness.run()
    assert len(levels_of(draft.tree)) == len(draft.tree.q or ()) == 1


@pytest.mark.parametrize("mode", EXACT)
def test_a_text_that_grows_by_the_trunk_keeps_the_rest_of_it(mode):
    harness = opened(mode=mode, steps=3)
    first = harness.state._comb.trunk[0]
    harness.say("s", 0, [first])
    harness.engine.forwards.clear()
    (draft,) = harness.run()
    assert harness.engine.forwards == [[1], [1]]
    assert draft.tree == drawn(mode=mode, output=(first,)).tree
    assert draft.position == 1


def test_a_tail_that_is_replaced_takes_the_tree_in_front_of_it_along():
    wide = {"mode": t.VerifyMode.COUPLED, "num_candidates": VOCAB, "top_k": 1, "window": 40}
    harness = opened(**wide)
    while not (drafts := harness.drafted()):
        harness.core.step()
    tail = tokens_of(drafts)
    assert len(tail) == 256 // VOCAB
    harness.steps(3)
    text = (*tail[:-1], (tail[-1] + 1) % VOCAB)
    harness.say("s", 0, text)
    assert tokens_of(harness.run()) == tokens_of(opened(**wide, output=text).run())


def test_another_name_alone_starts_a_drawn_tree_anew_on_the_kv_of_the_text():
    harness = opened(mode=t.VerifyMode.STANDARD, steps=3)
    built = harness.state._comb.trunk[:]
    harness.session.give_up()
    (draft,) = harness.run()
    assert len(levels_of(draft.tree)) == 4
    assert trunk_of(draft.tree)[:3] != built
    assert harness.engine.caches[0].tokens[:3] == [1, 2, 3]


# --- after it ----------------------------------------------------------------------


def test_kv_of_an_accepted_trunk_is_used_again():
    harness = opened()
    (draft,) = harness.run()
    trunk = trunk_of(draft.tree)
    text = [*trunk[:2], (trunk[2] + 1) % VOCAB]
    harness.engine.forwards.clear()
    harness.say("s", 0, text)
    (after,) = harness.run()
    assert harness.engine.forwards[0] == [1]
    check(harness.engine, after, [1, 2, 3, *text])


def test_sessions_of_every_mode_width_and_vocabulary_draft_together_what_they_draft_alone():
    openings = {
        f"{mode.name}-{count}-{vocab}": {"mode": mode, "num_candidates": count, "vocab_size": vocab}
        for mode in t.VerifyMode
        for count in (1, 3)
        for vocab in (0, 5)
    }
    together = Harness(FakeEngine(capacity=5000))
    for name, own in openings.items():
        together.open(name, sampling=PENALISED, **own)
    drafts = together.run()
    for name, own in openings.items():
        expected = nodes_of(Harness().drafts(sampling=PENALISED, **own))
        assert nodes_of(draft for draft in drafts if draft.session == name) == expected


def nodes_of(drafts):
    """The nodes of drafts, however many of them left together."""
    return [
        (draft.position + node if draft.tree.parents is None else (draft.position, node), *own)
        for draft in drafts
        for node, own in enumerate(nodes(draft.tree))
    ]


def nodes(tree):
    count = len(tree)
    parents = tree.parents or (None,) * count
    rows = tree.q if tree.q is not None and len(tree.q) == count else (tree.q,) * count
    return zip(tree.token_ids, parents, rows, strict=True)


@pytest.mark.parametrize("mode", list(t.VerifyMode))
@pytest.mark.parametrize("count", [1, 4])
def test_an_id_that_the_target_lacks_is_never_proposed(mode, count):
    class Padded(FakeEngine):
        """Its padding rows lead everywhere."""

        @staticmethod
        def logits(text):
            row = FakeEngine.logits(text)
            row[7:] += 50
            return row

    drafts = opened(
        Padded(),
        mode=mode,
        vocab_size=7,
        num_candidates=count,
        min_tokens=2,
        stop_token_ids=(6, 8, 300),
        logit_bias=((9, 5.0), (400, 5.0)),
        presence_penalty=0.5,
    ).run()
    tokens = [token for draft in drafts for token in draft.tree.token_ids]
    rows = [row for draft in drafts for row in draft.tree.q or ()]
    assert tokens
    assert max(tokens) < 7
    assert all(max(row.token_ids) < 7 for row in rows)


# --- any interleaving --------------------------------------------------------------

COMMITS = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.integers(0, 4),
        st.lists(st.integers(0, VOCAB - 1), max_size=2),
        st.integers(0, 6),
    ),
    max_size=10,
)


@tries(100)
@given(st.data())
def test_every_level_follows_from_text_and_trunk_and_kv_is_a_prefix_of_them(data):
    mode = data.draw(st.sampled_from(t.VerifyMode))
    law = {"mode": mode, "sampling": PENALISED}
    steps, count = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 3))
    harness = opened(step_tokens=steps, num_candidates=count, **law)
    session, cache = harness.session, harness.engine.caches[0]
    tail = []
    for steps, agreed, other, window in data.draw(COMMITS):
        for _ in range(steps):
            before = list(session.text)
            harness.core.step()
            for draft in harness.drafted():
                text = before[: 3 + draft.position]
                assert draft.hash == t.extend_hash(t.EMPTY_HASH, text[3:])
                check(harness.engine, draft, text, **law, count=count)
                tail = text[3 + session.committed_length :] + trunk_of(draft.tree)
            held = session.text + harness.state._comb.trunk
            if session.due:
                assert cache.tokens == held[: cache.length]
        harness.say("s", session.committed_length, [*tail[:agreed], *other])
        harness.allow("s", window)
        tail = session.text[3 + session.committed_length :]
