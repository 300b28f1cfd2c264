"""STANDARD and BLOCK sessions on a verifier core: rows, retained logits, bad q, neighbours."""

import random
from functools import partial

import pytest
import torch

from services.contract import types as t
from services.engine.sampling import RowContext, log_law
from tests.fake_engine import VOCAB, law
from tests.services.verifier_bench import PROMPT, Table, opening


def target_law(opened, output):
    """The target's law after prompt and output, float64 [V]."""
    context = RowContext(opened.mode, opened.sampling, opened.seed, len(output))
    return log_law(law([*opened.prompt, *output])[None], [context])[0].double().exp()


def as_row(probabilities):
    total = float(probabilities.sum())
    return t.SparseRow(tuple(range(VOCAB)), tuple(float(p) / total for p in probabilities))


def sampled(tokens, rows, parents=None):
    return t.DraftTree(tuple(tokens), parents, tuple(rows), t.Proposal.SAMPLED)


def drawn(opened, output, count, rng, off=0.0):
    """Tokens drawn from a law, with that law as q: the target's own, or so far off it."""
    tokens, rows = [], []
    for _ in range(count):
        law = target_law(opened, [*output, *tokens])
        rows.append(as_row(law + off * torch.rand(VOCAB).double() / VOCAB))
        tokens.append(rng.choices(range(VOCAB), rows[-1].probabilities)[0])
    return sampled(tokens, rows)


perfect = drawn
"""Every rule takes all of it."""
noisy = partial(drawn, off=0.5)


def ask(round_, base_len, tree=None, session="s", epoch=1, **more):
    return t.Verify(session, epoch, round_, base_len, tree or t.DraftTree(), **more)


@pytest.fixture
def table():
    return Table()


@pytest.fixture
def rng():
    torch.manual_seed(5)
    return random.Random(5)


def cached(table):
    [session] = table.core._sessions.values()
    return session


@pytest.fixture(params=[t.VerifyMode.STANDARD, t.VerifyMode.BLOCK], ids=lambda mode: mode.name)
def mode(request):
    return request.param


@pytest.fixture
def opened(table, mode):
    return table.opened(mode=mode)


def test_a_draft_drawn_from_the_targets_own_law_is_accepted_whole(table, opened, rng, mode):
    tree = perfect(opened, [], 5, rng)
    verdict = table.verdict(ask(1, 0, tree))
    assert (verdict.token_ids[:5], verdict.accepted) == (tree.token_ids, 5)
    assert (verdict.all_accepted, len(verdict.token_ids)) == (True, 6)
    assert (verdict.mode, verdict.bad_q_rows) == (mode, 0)


def test_without_a_bonus_the_next_block_costs_one_row_less(table, opened, rng):
    first = perfect(opened, [], 3, rng)
    output = list(table.verdict(ask(1, 0, first, want_bonus=False)).token_ids)
    assert output == list(first.token_ids)
    second = perfect(opened, output, 4, rng)
    verdict = table.verdict(ask(2, 3, second, want_bonus=False))
    assert verdict.token_ids == second.token_ids
    assert table.engine.forwards[-2:] == [[4], [4]]


def test_an_empty_block_after_one_accepted_whole_needs_no_forward(table, opened, rng):
    table.verdict(ask(1, 0, perfect(opened, [], 3, rng), want_bonus=False))
    forwards = len(table.engine.forwards)
    verdict = table.verdict(ask(2, 3, want_bonus=False))
    assert (len(verdict.token_ids), verdict.base_len, verdict.all_accepted) == (1, 3, True)
    assert len(table.engine.forwards) == forwards
    assert table.verdict(ask(3, 4)).base_len == 4
    assert len(table.engine.forwards) == forwards + 1


def test_the_law_from_a_retained_row_is_the_law_of_a_fresh_forward(rng, mode):
    """The same round of the same session draws the same token, retained or opened anew."""
    first = Table()
    opened = first.opened(mode=mode)
    output = list(first.verdict(ask(1, 0, perfect(opened, [], 3, rng), want_bonus=False)).token_ids)
    tree = noisy(opened, output, 4, rng)
    kept = first.verdict(ask(2, 3, tree))
    other = Table()
    other.opened(opening(mode=mode, committed=tuple(output)))
    assert other.verdict(ask(2, 3, tree)).token_ids == kept.token_ids


def test_a_chained_block_follows_at_once(table, opened, rng):
    first = perfect(opened, [], 3, rng)
    second = perfect(opened, first.token_ids, 3, rng)
    one, two = table.run(
        ask(1, 0, first, want_bonus=False), ask(2, 3, second, want_bonus=False, extends_round=1)
    )
    assert one.token_ids + two.token_ids == first.token_ids + second.token_ids


@pytest.mark.parametrize("seed", range(4))
def test_kv_and_text_agree_whatever_is_accepted(mode, seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    table = Table()
    opened = table.opened(mode=mode)
    output, round_ = [], 0
    while len(output) < 36:
        round_ += 1
        make = rng.choice([perfect, noisy])
        tree = make(opened, output, rng.randrange(6), rng)
        bonus = rng.random() < 0.4
        verdict = table.verdict(ask(round_, len(output), tree, want_bonus=bonus))
        assert verdict.token_ids[: verdict.accepted] == tree.token_ids[: verdict.accepted]
        ends = bonus or not len(tree) or not verdict.all_accepted
        assert len(verdict.token_ids) == verdict.accepted + ends
        output += verdict.token_ids
        session = cached(table)
        fed = [*PROMPT, *output][: None if session.retained is not None else -1]
        assert session.cache.tokens == fed
        assert (session.retained is None) == ends


def test_a_comb_of_candidates_is_judged_by_recursive_rejection(table, opened, rng):
    output, round_, taken = [], 0, set()
    while len(output) < 30:
        round_ += 1
        q = target_law(opened, output)
        two = rng.sample(range(VOCAB), 2)
        below = target_law(opened, [*output, two[0]])
        tree = sampled([*two, 3, 4], [as_row(q), as_row(below)], (-1, -1, 0, 0))
        verdict = table.verdict(ask(round_, len(output), tree))
        assert [tree.token_ids[node] for node in verdict.accepted_nodes] == list(
            verdict.token_ids[: verdict.accepted]
        )
        taken.update(verdict.accepted_nodes)
        output += verdict.token_ids
        assert cached(table).cache.tokens == [*PROMPT, *output][:-1]
    assert 0 in taken


def test_a_tree_may_follow_a_retained_row(table, opened, rng):
    output = list(table.verdict(ask(1, 0, perfect(opened, [], 2, rng), want_bonus=False)).token_ids)
    trunk = perfect(opened, output, 2, rng)
    rows = (trunk.q[0], trunk.q[1])
    spare = next(token for token in range(VOCAB) if token != trunk.token_ids[0])
    tree = sampled((trunk.token_ids[0], spare, trunk.token_ids[1]), rows, (-1, -1, 0))
    verdict = table.verdict(ask(2, 2, tree))
    assert verdict.accepted_nodes == (0, 2)
    assert table.engine.forwards[-1] == [3]
    output += verdict.token_ids
    assert cached(table).cache.tokens == [*PROMPT, *output][:-1]


BAD_ROWS = {
    "missing": t.SparseRow((), ()),
    "sum": t.SparseRow((0, 1), (0.5, 0.4)),
    "negative": t.SparseRow((0, 1), (1.5, -0.5)),
    "nan": t.SparseRow((0, 1), (float("nan"), 1.0)),
    "unknown id": t.SparseRow((0, VOCAB), (0.5, 0.5)),
    "twice": t.SparseRow((0, 0), (0.5, 0.5)),
}


@pytest.mark.parametrize("fault", BAD_ROWS)
def test_a_bad_row_is_counted_and_costs_speed_only(table, opened, rng, fault):
    tree = perfect(opened, [], 4, rng)
    rows = (*tree.q[:2], BAD_ROWS[fault], tree.q[3])
    verdict = table.verdict(ask(1, 0, sampled(tree.token_ids, rows)))
    assert verdict.bad_q_rows == 1
    assert verdict.accepted >= 2
    assert not verdict.discarded


@pytest.mark.usefixtures("opened")
def test_a_deterministic_draft_is_no_bad_row(table):
    verdict = table.verdict(ask(1, 0, t.DraftTree((1, 2, 3))))
    assert (verdict.bad_q_rows, verdict.draft_tokens) == (0, 3)


def test_a_round_draws_the_same_again_and_another_round_does_not(mode):
    """Draws are keyed by term, epoch and round: equal keys repeat, others are fresh."""

    def first_tokens(round_, epoch, term):
        table = Table()
        table.opened(opening(mode=mode, term=term, epoch=epoch))
        return table.verdict(ask(round_, 0, epoch=epoch)).token_ids

    assert first_tokens(1, 1, 1) == first_tokens(1, 1, 1)
    others = {
        first_tokens(r, e, token) for r in range(1, 5) for e in range(1, 4) for token in (1, 2)
    }
    assert len(others) > 3


def test_neighbours_of_every_mode_do_not_change_a_verdict(rng, mode):
    alone, together = Table(), Table()
    opened = alone.opened(mode=mode)
    tree = noisy(opened, [], 5, rng)
    expected = alone.verdict(ask(1, 0, tree)).token_ids
    together.opened(opening(mode=mode))
    for name in t.VerifyMode:
        together.opened(opening(name.name, mode=name, prompt=(3, 1), seed=4))
    asks = [ask(1, 0, t.DraftTree((1, 2)), session=name.name) for name in t.VerifyMode]
    before = len(together.engine.forwards)
    events = together.run(ask(1, 0, tree), *asks)
    assert len(together.engine.forwards) == before + 1
    assert {event.batch_size for event in events} == {1 + len(t.VerifyMode)}
    assert {event.session: event for event in events}["s"].token_ids == expected


def test_a_stored_verdict_is_never_drawn_again(table, opened, rng):
    command = ask(1, 0, noisy(opened, [], 5, rng))
    verdict = table.verdict(command)
    forwards = len(table.engine.forwards)
    assert table.verdict(command) == verdict
    assert len(table.engine.forwards) == forwards


def test_logprobs_after_a_retained_row_are_those_of_the_raw_law(table, rng, mode):
    opened = table.opened(mode=mode, logprobs=2, temperature=0.5)
    output = list(table.verdict(ask(1, 0, perfect(opened, [], 2, rng), want_bonus=False)).token_ids)
    verdict = table.verdict(ask(2, 2, perfect(opened, output, 2, rng)))
    for token, shown in zip(verdict.token_ids, verdict.logprobs, strict=True):
        raw = torch.log_softmax(law([*PROMPT, *output]), dim=-1)
        assert shown.logprob == pytest.approx(float(raw[token]), abs=1e-5)
        output.append(token)
