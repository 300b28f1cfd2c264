"""Drafts with several candidates per node: their shape, order, bounds, and the KV behind them."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from services.contract import types as t
from services.drafter.comb import Comb, Level
from services.engine.sampling import History, RowContext, best, coupled_best, top_law
from tests.services.drafter_kit import VOCAB, FakeEngine, Harness, tokens_of

SAMPLED = (t.VerifyMode.STANDARD, t.VerifyMode.BLOCK)
PENALISED = t.ResolvedSampling(
    max_tokens=60, temperature=0.8, frequency_penalty=0.7, repetition_penalty=1.3
)


def levels_of(tree: t.DraftTree) -> list[tuple[int, ...]]:
    """Candidates per node that has some, from the root down; asserts that it is a comb."""
    parents = tree.parents if tree.parents is not None else range(-1, len(tree) - 1)
    levels: dict[int, list[int]] = {}
    for token, parent in zip(tree.token_ids, parents, strict=True):
        levels.setdefault(parent, []).append(token)
    trunk, first = [-1], 0
    for level in levels.values():
        trunk.append(first)
        first += len(level)
    assert list(levels) == trunk[:-1]
    return [tuple(level) for level in levels.values()]


def trunk_of(tree: t.DraftTree) -> list[int]:
    return [level[0] for level in levels_of(tree)]


def expected_level(
    engine: Any, text: Sequence[int], row: RowContext, count: int
) -> tuple[int, ...] | t.SparseRow:
    """What a level after `text` must be: its candidates, or the law they are drawn from."""
    logits = engine.logits(text)[None]
    if row.mode in SAMPLED:
        ids, q = (part[0] for part in top_law(logits, [row], VOCAB))
        return t.SparseRow(tuple(ids[q > 0].tolist()), tuple(q[q > 0].tolist()))
    found = (best if row.mode is t.VerifyMode.GREEDY else coupled_best)(logits, [row], count)
    return tuple(token for token in found[0].tolist() if token >= 0)


def check(engine: Any, draft: t.Draft, text: Sequence[int], prompt: int, **session: Any) -> None:
    """Every level follows from the text and trunk in front of it."""
    sampling, mode, count = session["sampling"], session["mode"], session["count"]
    history = History(text[:prompt])
    history.extend(text[prompt:])
    path: tuple[int, ...] = ()
    for depth, level in enumerate(levels_of(draft.tree)):
        position = len(text) - prompt + depth
        row = RowContext(mode, sampling, 7, position, history, path)
        expected = expected_level(engine, [*text, *path], row, count)
        if isinstance(expected, t.SparseRow):
            assert draft.tree.q is not None
            assert draft.tree.q[depth] == expected
            assert len(level) == min(count, len(expected.token_ids)) == len(set(level))
        else:
            assert level == expected
        path = (*path, level[0])


def open_tree(harness: Harness, prompt: Sequence[int] = (1, 2, 3), **changes: Any) -> None:
    harness.open("s", prompt, **{"num_candidates": 3, "window": 4, **changes})


# --- shape and order ---------------------------------------------------------------


def test_a_greedy_tree_holds_the_best_of_every_trunk_node():
    harness = Harness(FakeEngine())
    open_tree(harness)
    (draft,) = harness.run()
    assert draft.final
    assert draft.tree.parents == (-1, -1, -1, 0, 0, 0, 3, 3, 3, 6, 6, 6)
    assert (draft.tree.proposal, draft.tree.q) == (t.Proposal.ONE_HOT, None)
    text = [1, 2, 3]
    for level in levels_of(draft.tree):
        assert level == tuple(harness.engine.logits(text).topk(3).indices.tolist())
        text.append(level[0])


def test_only_the_trunk_enters_kv_one_token_a_step():
    harness = Harness(FakeEngine())
    open_tree(harness)
    harness.run()
    assert harness.engine.forwards == [[3], [1], [1], [1]]


@pytest.mark.parametrize("mode", list(t.VerifyMode))
def test_every_level_is_that_of_its_mode_under_every_parameter(mode):
    harness = Harness(FakeEngine())
    open_tree(harness, mode=mode, sampling=PENALISED)
    (draft,) = harness.run()
    assert len(levels_of(draft.tree)) == 4
    assert draft.tree.without_replacement == (mode in SAMPLED)
    check(harness.engine, draft, [1, 2, 3], 3, mode=mode, sampling=PENALISED, count=3)


def test_the_children_of_a_coupled_node_begin_with_the_chain_it_would_draft():
    sampling = t.ResolvedSampling(temperature=1.5, max_tokens=60)
    trees, chains = Harness(FakeEngine()), Harness(FakeEngine())
    open_tree(trees, mode=t.VerifyMode.COUPLED, sampling=sampling)
    open_tree(chains, mode=t.VerifyMode.COUPLED, sampling=sampling, num_candidates=1)
    chain = tokens_of(chains.run())
    (draft,) = trees.run()
    assert trunk_of(draft.tree) == chain
    assert draft.tree.proposal is t.Proposal.COUPLED


@pytest.mark.parametrize(
    ("changes", "depth", "width"),
    [
        ({"window": 7}, 7, 3),
        ({"window": 60, "num_candidates": 10}, 25, 10),
        ({"window": 60, "num_candidates": 64}, 21, 12),
        ({"sampling": t.ResolvedSampling(max_tokens=2)}, 2, 3),
        ({"prompt": [1] * 28}, 3, 3),
    ],
)
def test_depth_is_bounded_by_window_nodes_length_and_context(changes, depth, width):
    harness = Harness(FakeEngine(context=30))
    open_tree(harness, **changes)
    (draft,) = harness.run()
    assert [len(level) for level in levels_of(draft.tree)] == [width] * depth
    assert len(draft.tree) <= 256


def test_a_law_with_little_support_has_fewer_children():
    harness = Harness(FakeEngine())
    sampling = t.ResolvedSampling(max_tokens=60, top_k=2)
    open_tree(harness, mode=t.VerifyMode.BLOCK, sampling=sampling, num_candidates=5)
    (draft,) = harness.run()
    assert [len(level) for level in levels_of(draft.tree)] == [2] * 4
    assert [len(row.token_ids) for row in draft.tree.q or ()] == [2] * 4


def test_q_is_cut_to_the_setting_and_so_are_the_candidates():
    harness = Harness(FakeEngine(), q_top=2)
    open_tree(harness, mode=t.VerifyMode.STANDARD)
    (draft,) = harness.run()
    for level, row in zip(levels_of(draft.tree), draft.tree.q or (), strict=True):
        assert sorted(level) == sorted(row.token_ids)
        assert sum(row.probabilities) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("mode", [mode for mode in t.VerifyMode if mode is not t.VerifyMode.GREEDY])
def test_a_tree_with_one_candidate_everywhere_is_a_chain_and_becomes_text(mode):
    narrow, chains = Harness(FakeEngine()), Harness(FakeEngine())
    sampling = t.ResolvedSampling(max_tokens=60, top_k=1)
    open_tree(narrow, mode=mode, sampling=sampling)
    open_tree(chains, mode=mode, sampling=sampling, num_candidates=1)
    expected = tokens_of(chains.run())
    (draft,) = narrow.run()
    assert (draft.tree.parents, list(draft.tree.token_ids)) == (None, expected)
    assert narrow.core._entries[0, "s"].session.text == [1, 2, 3, *expected]


def test_a_stop_token_ends_the_trunk_with_its_siblings_and_a_leaf_ends_nothing():
    harness = Harness(FakeEngine())
    open_tree(harness)
    (free,) = harness.run()
    levels = levels_of(free.tree)
    for stop, kept in ((levels[2][0], 3), (levels[1][1], 4)):
        assert stop not in trunk_of(free.tree)[: kept - 1]
        harness = Harness(FakeEngine())
        open_tree(harness, sampling=t.ResolvedSampling(max_tokens=60, stop_token_ids=(stop,)))
        (draft,) = harness.run()
        assert levels_of(draft.tree) == levels[:kept]


def test_a_row_without_a_finite_law_sends_the_levels_before_it():
    class Broken(FakeEngine):
        @staticmethod
        def logits(text: Sequence[int]) -> Tensor:
            row = FakeEngine.logits(text)
            return row if len(text) < 5 else row * torch.nan

    for mode in t.VerifyMode:
        harness = Harness(Broken())
        open_tree(harness, mode=mode)
        (draft,) = harness.run()
        assert (len(levels_of(draft.tree)), draft.final) == (2, True)


# --- while it is built -------------------------------------------------------------


def test_nothing_is_said_until_the_tree_is_whole_and_its_time_is_told_then():
    harness = Harness(FakeEngine())
    clock = iter(range(0, 10**12, 10**6))
    harness.core._clock = lambda: next(clock)
    open_tree(harness)
    for _ in range(3):
        harness.core.step()
        assert harness.take() == []
    harness.core.step()
    (draft,) = harness.take()
    assert draft.draft_ms == pytest.approx(4.0)


def test_the_time_of_a_prompt_that_enters_in_chunks_is_not_the_drafts():
    harness = Harness(FakeEngine(), step_tokens=2)
    clock = iter(range(0, 10**12, 10**6))
    harness.core._clock = lambda: next(clock)
    open_tree(harness, prompt=[1] * 9, window=2)
    (draft,) = harness.run()
    assert harness.engine.forwards == [[2], [2], [2], [2], [1], [1]]
    assert draft.draft_ms == pytest.approx(2.0)


def test_a_credit_in_the_middle_changes_the_depth_and_redraws_nothing():
    whole, halted = Harness(FakeEngine()), Harness(FakeEngine())
    for harness in (whole, halted):
        open_tree(harness, mode=t.VerifyMode.STANDARD)
        harness.core.step()
        harness.core.step()
    halted.credit("s", 0)
    assert halted.run() == []
    halted.credit("s", 3)
    (draft,), (full,) = halted.run(), whole.run()
    assert levels_of(draft.tree) == levels_of(full.tree)[:3]
    assert halted.engine.forwards == [[3], [1], [1]]


def test_a_smaller_window_cuts_what_is_built():
    harness = Harness(FakeEngine())
    open_tree(harness, mode=t.VerifyMode.BLOCK)
    for _ in range(3):
        harness.core.step()
    harness.credit("s", 1)
    (draft,) = harness.run()
    assert len(levels_of(draft.tree)) == 1
    assert len(draft.tree.q or ()) == 1


@pytest.mark.parametrize("mode", [t.VerifyMode.GREEDY, t.VerifyMode.COUPLED])
def test_a_text_that_grows_by_the_trunk_keeps_the_rest_of_it(mode):
    harness, fresh = Harness(FakeEngine()), Harness(FakeEngine())
    open_tree(harness, mode=mode)
    for _ in range(3):
        harness.core.step()
    first = harness.drafter._sessions[0, "s"]._comb.trunk[0]
    harness.commit("s", 0, [first])
    harness.engine.forwards.clear()
    (draft,) = harness.run()
    assert harness.engine.forwards == [[1], [1]]
    open_tree(fresh, mode=mode, committed=(first,))
    (expected,) = fresh.run()
    assert (draft.tree, draft.first_position) == (expected.tree, 1)


@pytest.mark.parametrize("bump", [False, True])
def test_a_text_that_departs_from_the_trunk_starts_the_tree_anew(bump):
    harness, fresh = Harness(FakeEngine()), Harness(FakeEngine())
    open_tree(harness)
    for _ in range(3):
        harness.core.step()
    wrong = (harness.drafter._sessions[0, "s"]._comb.trunk[0] + 1) % VOCAB
    harness.commit("s", 0, [wrong], epoch=1 + bump)
    (draft,) = harness.run()
    open_tree(fresh, committed=(wrong,))
    (expected,) = fresh.run()
    assert draft.tree == expected.tree


def test_a_tail_that_is_replaced_takes_the_tree_in_front_of_it_along():
    harness, fresh = Harness(FakeEngine()), Harness(FakeEngine())
    wide: dict[str, Any] = {
        "mode": t.VerifyMode.COUPLED,
        "num_candidates": VOCAB,
        "sampling": t.ResolvedSampling(max_tokens=60, top_k=1),
        "window": 40,
    }
    open_tree(harness, **wide)
    while not (drafts := harness.take()):
        harness.core.step()
    tail = tokens_of(drafts)
    assert len(tail) == 256 // VOCAB
    for _ in range(3):
        harness.core.step()
    text = [*tail[:-1], (tail[-1] + 1) % VOCAB]
    harness.commit("s", 0, text)
    open_tree(fresh, **wide, committed=tuple(text))
    assert tokens_of(harness.run()) == tokens_of(fresh.run())


def test_a_new_epoch_alone_starts_the_tree_anew_on_the_kv_of_the_text():
    harness = Harness(FakeEngine())
    open_tree(harness, mode=t.VerifyMode.STANDARD)
    for _ in range(3):
        harness.core.step()
    built = harness.drafter._sessions[0, "s"]._comb.trunk[:]
    harness.commit("s", 0, [], epoch=2)
    (draft,) = harness.run()
    assert (draft.epoch, len(levels_of(draft.tree))) == (2, 4)
    assert trunk_of(draft.tree)[:3] != built
    cache = harness.engine.caches[0]
    assert cache.tokens[:3] == [1, 2, 3]


# --- after it ----------------------------------------------------------------------


def test_kv_of_an_accepted_trunk_is_used_again():
    harness = Harness(FakeEngine())
    open_tree(harness)
    (draft,) = harness.run()
    trunk = trunk_of(draft.tree)
    harness.engine.forwards.clear()
    harness.commit("s", 0, [*trunk[:2], (trunk[2] + 1) % VOCAB], epoch=2)
    (after,) = harness.run()
    assert harness.engine.forwards[0] == [1]
    text = [1, 2, 3, *trunk[:2], (trunk[2] + 1) % VOCAB]
    check(
        harness.engine,
        after,
        text,
        3,
        mode=t.VerifyMode.GREEDY,
        sampling=t.ResolvedSampling(max_tokens=60),
        count=3,
    )


def test_sessions_of_every_mode_width_and_vocabulary_draft_together_what_they_draft_alone():
    openings: dict[str, dict[str, Any]] = {
        f"{mode.name}-{count}-{vocab}": {
            "mode": mode,
            "num_candidates": count,
            "vocab_size": vocab,
            "sampling": PENALISED,
        }
        for mode in t.VerifyMode
        for count in (1, 3)
        for vocab in (0, 5)
    }
    together = Harness(FakeEngine())
    together.engine.budget.capacity = 5000
    for name, opening in openings.items():
        together.open(name, [1, 2, 3], **opening)
    drafts = together.run()
    for name, opening in openings.items():
        alone = Harness(FakeEngine())
        alone.open(name, [1, 2, 3], **opening)
        expected = [draft.tree for draft in alone.run()]
        assert [draft.tree for draft in drafts if draft.session == name] == expected


@pytest.mark.parametrize("mode", list(t.VerifyMode))
@pytest.mark.parametrize("count", [1, 4])
def test_an_id_that_the_target_lacks_is_never_proposed(mode, count):
    class Padded(FakeEngine):
        """Its padding rows lead everywhere."""

        @staticmethod
        def logits(text: Sequence[int]) -> Tensor:
            row = FakeEngine.logits(text)
            row[7:] += 50
            return row

    harness = Harness(Padded())
    sampling = t.ResolvedSampling(
        max_tokens=60,
        min_tokens=2,
        stop_token_ids=(6, 8, 300),
        logit_bias=((9, 5.0), (400, 5.0)),
        presence_penalty=0.5,
    )
    open_tree(harness, mode=mode, vocab_size=7, num_candidates=count, sampling=sampling)
    drafts = harness.run()
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
        st.booleans(),
        st.integers(0, 6),
    ),
    max_size=10,
)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_level_follows_from_text_and_trunk_and_kv_is_a_prefix_of_them(data):
    engine = FakeEngine()
    harness = Harness(engine, step_tokens=data.draw(st.integers(1, 8)))
    mode = data.draw(st.sampled_from(t.VerifyMode))
    count = data.draw(st.integers(1, 3))
    open_tree(harness, mode=mode, num_candidates=count, sampling=PENALISED)
    session = harness.core._entries[0, "s"].session
    epoch, tail = 1, []
    for steps, agreed, other, bump, window in data.draw(COMMITS):
        for _ in range(steps):
            before = list(session.text)
            harness.core.step()
            for draft in harness.take():
                assert draft.prefix_hash == t.extend_hash(t.EMPTY_HASH, before[3:])
                check(engine, draft, before, 3, mode=mode, sampling=PENALISED, count=count)
                tail = before[3 + session.committed_length :] + trunk_of(draft.tree)
            held = session.text + harness.drafter._sessions[0, "s"]._comb.trunk
            if session.drafting:
                assert engine.caches[0].tokens == held[: engine.caches[0].length]
        epoch += bump
        harness.commit("s", session.committed_length, [*tail[:agreed], *other], epoch)
        harness.credit("s", window)
        tail = session.text[3 + session.committed_length :]


def test_a_comb_lists_levels_in_order_and_knows_the_row_of_the_next():
    comb = Comb(advances=False)
    comb.follow([1, 2], 0)
    nodes = []
    for level in (Level((5, 6)), Level((7,)), Level((8, 9))):
        nodes.append(comb.node)
        comb.add(level)
    assert (nodes, comb.node) == ([0, 1, 3], 4)
    tree = comb.take(3, t.Proposal.COUPLED)
    assert (tree.token_ids, tree.parents) == ((5, 6, 7, 8, 9), (-1, -1, 0, 2, 2))
    assert comb.follow([1, 2, 5, 7, 3], 0) == 4
