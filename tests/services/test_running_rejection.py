"""STANDARD and BLOCK sessions that a verifier runs: drawn drafts, combs, bad q, neighbours."""

import random
from functools import partial

import pytest
import torch

from services.contract import types as t
from services.contract.frames import StepEnd
from services.engine.sampling import RowContext, log_law
from tests.fake_engine import VOCAB, law
from tests.services.running_bench import PROMPT, Running, draft, limit, start


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


@pytest.fixture
def table():
    return Running()


@pytest.fixture
def rng():
    torch.manual_seed(5)
    return random.Random(5)


@pytest.fixture(params=[t.VerifyMode.STANDARD, t.VerifyMode.BLOCK], ids=lambda mode: mode.name)
def mode(request):
    return request.param


@pytest.fixture
def opened(table, mode):
    command = start(mode=mode, limit=0)
    table.run(command)
    return command


def verified(table, tree, number=1):
    """The row of one step with a draft behind all that was said."""
    said = table.output()
    [row] = table.step(draft((), said, number, tree=tree), limit(len(said) + 1))
    return row


def test_a_draft_drawn_from_the_targets_own_law_is_accepted_whole(table, opened, rng):
    tree = perfect(opened, [], 5, rng)
    row = verified(table, tree)
    assert (row.tokens[:5], row.accepted) == (tree.token_ids, 5)
    assert (row.end, len(row.tokens), row.bad_q_rows) == (StepEnd.BONUS, 6, 0)


@pytest.mark.parametrize("seed", range(4))
def test_kv_and_text_agree_whatever_is_accepted(mode, seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    table, opened = Running(), start(mode=mode, limit=0)
    table.run(opened)
    number, accepted = 0, 0
    while len(table.output()) < 36:
        number += 1
        tree = rng.choice([perfect, noisy])(opened, table.output(), rng.randrange(6), rng)
        row = verified(table, tree, number)
        assert row.tokens[: row.accepted] == tree.token_ids[: row.accepted]
        assert len(row.tokens) == row.accepted + (row.end is not StepEnd.NONE)
        accepted += row.accepted
        [cache] = table.engine.caches
        assert cache.tokens == [*PROMPT, *table.output()][:-1]
    assert accepted > 10


def test_a_comb_of_candidates_is_judged_by_recursive_rejection(table, opened, rng):
    number, taken = 0, set()
    while len(table.output()) < 30:
        number += 1
        said = table.output()
        two = rng.sample(range(VOCAB), 2)
        below = target_law(opened, [*said, two[0]])
        tree = sampled([*two, 3, 4], [as_row(torch.ones(VOCAB)), as_row(below)], (-1, -1, 0, 0))
        row = verified(table, tree, number)
        path = row.path or tuple(range(row.accepted))
        assert tuple(tree.token_ids[node] for node in path) == row.tokens[: row.accepted]
        taken.update(path)
        [cache] = table.engine.caches
        assert cache.tokens == [*PROMPT, *table.output()][:-1]
    assert taken >= {0, 1}


def test_the_path_of_a_tree_goes_through_what_was_drawn_from_the_targets_own_law(
    table, opened, rng
):
    trunk = perfect(opened, [], 2, rng)
    spare = next(token for token in range(VOCAB) if token != trunk.token_ids[0])
    tree = sampled((trunk.token_ids[0], spare, trunk.token_ids[1]), trunk.q, (-1, -1, 0))
    row = verified(table, tree)
    assert (row.accepted, row.path) == (2, (0, 2))
    [cache] = table.engine.caches
    assert cache.tokens == [*PROMPT, *table.output()][:-1]


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
    row = verified(table, sampled(tree.token_ids, rows))
    assert (row.judged, row.bad_q_rows) == (tree.token_ids, 1)
    assert row.accepted >= 2
    assert len(verified(table, t.DraftTree(), 2).tokens) == 1, "the session goes on"


@pytest.mark.usefixtures("opened")
def test_a_deterministic_draft_is_no_bad_row(table):
    row = verified(table, t.DraftTree((1, 2, 3)))
    assert (row.bad_q_rows, row.judged) == (0, (1, 2, 3))


def test_an_opening_draws_the_same_again_and_another_does_not(mode):
    """Draws are keyed by term, opening and step: equal keys repeat, others are fresh."""

    def first_tokens(opening, term):
        table = Running()
        table.run(start(mode=mode, term=term, opening=opening, limit=2))
        return table.output(opening=opening)

    assert first_tokens(1, 1) == first_tokens(1, 1)
    assert len({first_tokens(own, term) for own in range(1, 7) for term in (1, 2)}) > 3


def test_neighbours_of_every_mode_do_not_change_what_a_step_brings(rng, mode):
    opened = start(mode=mode, limit=0)
    tree = noisy(opened, [], 5, rng)
    alone, together = Running(), Running()
    alone.run(opened)
    expected = verified(alone, tree)
    others = {
        handle: start(handle, mode=own, prompt=(3, 1), seed=4, limit=0)
        for handle, own in enumerate(t.VerifyMode, 2)
    }
    together.run(opened, *others.values())
    together.give(*[draft((1, 2), handle=own) for own in others])
    before = len(together.engine.forwards)
    rows = together.step(draft((), tree=tree), *[limit(1, own) for own in (1, *others)])
    assert len(together.engine.forwards) == before + 1
    assert len(rows) == 1 + len(t.VerifyMode)
    [own] = [row for row in rows if row.handle == 1]
    assert (own.tokens, own.accepted) == (expected.tokens, expected.accepted)


def test_logprobs_are_those_of_the_raw_law(table, rng, mode):
    opened = start(mode=mode, logprobs=2, temperature=0.5, limit=0)
    table.run(opened)
    row = verified(table, perfect(opened, [], 3, rng))
    assert len(row.logprobs) == len(row.tokens) == 4
    text = list(PROMPT)
    for token, shown in zip(row.tokens, row.logprobs, strict=True):
        raw = torch.log_softmax(law(text), dim=-1)
        assert shown.logprob == pytest.approx(float(raw[token]), abs=1e-5)
        text.append(token)
