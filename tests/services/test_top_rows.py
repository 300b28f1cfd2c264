"""What the target says at the rows of drafts: told, passed on, kept, and drafted from."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.contract.top_rows import MOST_ROWS, WIDTH, fits, pack, unpack
from services.contract.types import DraftSource, DraftTree, VerifyMode
from services.drafter.methods.ngram import small_tree
from services.drafter.methods.ngram.small_tree import SmallTrees, TargetRows
from services.engine.ngram_file import NgramFile
from services.engine.sampling import likeliest
from tests.fake_engine import law
from tests.services.running_bench import (
    COUPLED,
    GREEDY,
    PROMPT,
    TEXT,
    Running,
    draft,
    limit,
    start,
    text_of,
)
from tests.services.test_small_tree import Bench, started

u32 = st.integers(0, (1 << 32) - 1)


@given(st.lists(st.tuples(u32, u32, u32), max_size=MOST_ROWS))
def test_rows_come_back_as_they_were_packed(rows):
    packed = pack([row[0] for row in rows], [row[1:] for row in rows])
    assert list(unpack(packed, 2)) == [(row[0], row[1:]) for row in rows]


@pytest.mark.parametrize(
    ("rows", "width"),
    [
        (b"\0" * 11, 2),
        (b"\0" * 12, 0),
        (b"\0" * 12, WIDTH + 1),
        (b"\0" * 12, 1 << 31),
        (b"\0" * 12 * (MOST_ROWS + 1), 2),
    ],
)
def test_what_are_no_rows_says_nothing(rows, width):
    assert not fits(rows, width)
    assert list(unpack(rows, width)) == []


@pytest.mark.parametrize("width", [5, 8, 128, 1024, 1100, 2047, 2048, 5000])
def test_the_likeliest_of_a_row_are_those_of_the_whole_row(width):
    drawn = torch.Generator().manual_seed(width)
    logits = torch.randn(7, width, generator=drawn)
    # The best ones stand side by side at the end, where the last chunk is not a whole one.
    logits[0, -5:] += 100.0
    for count in (1, 5):
        assert torch.equal(likeliest(logits, count), logits.topk(count).indices)


# --- verifiers tell them ----------------------------------------------------------------


def told(text, width=WIDTH):
    """What the target says after a text."""
    return text[-1], tuple(law(text).topk(width).indices.tolist())


def verified(tree=None, **more):
    """The row of one step, in which a draft behind the prompt is verified."""
    table = Running()
    table.run(start(limit=0, **more))
    [row] = table.step(*[draft((), tree=tree)] * (tree is not None), limit(1))
    return row


@pytest.mark.parametrize("mode", [GREEDY, COUPLED], ids=lambda mode: mode.name)
def test_steps_tell_the_rows_of_accepted_and_of_rejected_drafts(mode):
    text = text_of(start(mode=mode), 3)
    wrong = (text[0] + 1) % 7
    tree = DraftTree((text[0], wrong, text[1], wrong), (-1, -1, 0, 1))
    row = verified(tree, mode=mode, top_rows=3)
    assert row.tokens == text
    prompt = list(PROMPT)
    assert list(unpack(row.top_rows, 3)) == [
        told(prompt, 3),
        told([*prompt, text[0]], 3),
        told([*prompt, wrong], 3),
        told([*prompt, *text[:2]], 3),
        told([*prompt, wrong, wrong], 3),
    ]


def test_the_first_row_of_a_draft_is_that_of_the_last_token_before_it():
    table = Running()
    table.step(start(top_rows=3))
    [row] = table.step(draft((7,), TEXT[:1]))
    assert next(unpack(row.top_rows, 3)) == told([*PROMPT, TEXT[0]], 3)


@pytest.mark.parametrize(
    ("asked", "mode", "tree"),
    [
        (0, GREEDY, DraftTree((1, 2))),
        (WIDTH, GREEDY, None),
        (WIDTH, VerifyMode.STANDARD, DraftTree((1, 2))),
    ],
)
def test_nothing_is_told_that_nobody_asked_for_or_that_says_nothing_new(asked, mode, tree):
    assert verified(tree, mode=mode, top_rows=asked).top_rows == b""


def test_who_asks_for_more_than_there_is_gets_what_there_is():
    assert fits(verified(DraftTree((1,)), top_rows=1 << 31).top_rows, WIDTH)


# --- drafters keep and use them ---------------------------------------------------------


def rows(*said):
    """After each first token the second is likeliest, of rows of two."""
    return pack([token for token, _ in said], [(best, 9) for _, best in said])


def test_of_each_token_the_newest_row_is_kept_and_of_many_the_last_ones(monkeypatch):
    monkeypatch.setattr(small_tree, "MOST_CONTEXTS", 3)
    known = TargetRows(2, vocab_size=10)
    known.learn(rows((1, 2), (1, 3), (2, 4)))
    assert (known.after(1), known.after(2), known.after(3)) == ((3, 9), (4, 9), ())
    known.learn(rows((3, 5), (1, 6), (4, 7)))
    assert (known.after(2), known.after(1), len(known)) == ((), (6, 9), 3)


def test_a_row_with_a_token_that_the_target_has_not_is_not_drafted_from():
    known = TargetRows(2, vocab_size=9)
    known.learn(rows((1, 2)))
    assert known.after(1) == ()


ROWS_ALONE = {"greedy.row": 2.0, "greedy.row_rank": 1.0, "greedy.row_first": 1.0}


def rows_alone():
    """A drafter that goes by the target's rows, and by nothing else."""
    return Bench(SmallTrees(NgramFile("", "", "", 0, [], b"", (), ROWS_ALONE)))


def test_what_the_target_said_after_a_token_is_drafted_when_it_comes_again():
    bench = rows_alone()
    assert not bench.began([1, 2, 3], top_rows=2)[0].tree
    [draft] = bench.brought(0, (4,), top_rows=rows((4, 5), (5, 6), (8, 3)))
    tree = draft.tree
    assert (tree.token_ids[0], tree.every_parent[0]) == (5, -1)
    assert (6, 0) in zip(tree.token_ids, tree.every_parent, strict=True)
    assert set(draft.sources) == {DraftSource.TARGET_ROWS}


def test_rows_are_of_their_session_alone_and_end_with_it():
    bench = rows_alone()
    bench.began([1, 2], scope="a", top_rows=2)
    assert bench.brought(0, (4,), top_rows=rows((4, 5)))[0].tree
    bench.open("other", **started([1, 2], scope="a", top_rows=2))
    bench.run()
    bench.say("other", 0, (4,))
    [other] = bench.run()
    assert not other.tree
    [anew] = bench.began([1, 2, 4], scope="a", top_rows=2, opening=9)
    assert not anew.tree
