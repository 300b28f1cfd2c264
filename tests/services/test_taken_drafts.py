"""Blocks that take what a drafter in their process has ready: how much, and the same text."""

import math
import random

import pytest

from services.contract import types as t
from services.engine.lending import Lending
from services.runtime.tree_handover import Handover
from services.scheduling.tree_budget import worth_most
from tests.fake_engine import VOCAB
from tests.services.verifier_bench import EXACT, PROMPT, TEXT, Table, block, other, target_text

FREE = t.Allowance((0.0,) * 16, (1.0,) * 6)
BEFORE = (4, 5, 6)


def draft(tokens=(1, 2, 3), parents=None, reach=None, sources=b"", session="s"):
    reach = tuple(0.9 - 0.01 * node for node in range(len(tokens))) if reach is None else reach
    tree = t.DraftTree(tuple(tokens), parents)
    return t.Draft(session, 1, 0, 0, 0, tree, True, 6.0, reach, sources)


# --- the handover ------------------------------------------------------------------------


def test_as_many_nodes_are_worth_their_price_as_bring_most_beyond_it():
    assert worth_most((0.9, 0.5, 0.1), (0.3, 0.6, 0.9)) == 2
    assert worth_most((0.2, 0.1), (0.3, 0.6)) == 0
    # The second one alone would not pay: it has a stair behind it.
    assert worth_most((0.9, 0.1, 0.8), (0.2, 0.5, 0.6)) == 3
    assert worth_most((0.9, 0.9), (0.1,)) == 1


@pytest.fixture
def handover():
    return Handover()


def test_a_block_takes_the_beginning_of_the_tree_that_pays(handover):
    handover.leave(draft((1, 2, 3), (-1, -1, 0), (0.9, 0.5, 0.1), b"\1\2\3"), BEFORE)
    taken = handover.take("s", BEFORE, t.Allowance((0.3, 0.6, 0.9), (1.0,) * 6), 8)
    assert taken == t.TakenDraft(t.DraftTree((1, 2), (-1, -1)), (0.9, 0.5), b"\1\2", 4.0)
    assert handover.take("s", BEFORE, FREE, 8) == t.TakenDraft()


def test_a_chain_is_taken_as_one_and_no_more_nodes_than_may_be(handover):
    handover.leave(draft((1, 2, 3), (-1, 0, 1)), BEFORE)
    assert handover.take("s", BEFORE, FREE, 2).tree == t.DraftTree((1, 2))


@pytest.mark.parametrize("text", [(*BEFORE, 7), (4, 5, 9), BEFORE[:2]])
def test_what_was_drafted_behind_another_text_is_left(handover, text):
    handover.leave(draft(), BEFORE)
    assert handover.take("s", text, FREE, 8) == t.TakenDraft()


def test_a_draft_goes_nowhere_else_only_where_a_block_waits_for_it(handover):
    assert not handover.leave(draft(), BEFORE)
    handover.expect("s")
    assert handover.leave(draft(), BEFORE)
    assert not handover.leave(draft(session="t"), BEFORE)
    handover.take("s", BEFORE, FREE, 8)
    assert not handover.leave(draft(), BEFORE)
    handover.expect("s")
    handover.forget("s")
    assert not handover.leave(draft(), BEFORE)


def test_nothing_is_kept_of_sessions_that_ended(handover):
    for name in map(str, range(100)):
        handover.expect(name)
        handover.leave(draft(session=name), BEFORE)
        handover.take(name, BEFORE, FREE, 8)
        handover.forget(name)
    assert not handover._left
    assert not handover._expected


# --- the verifier ----------------------------------------------------------------------


def taking(round_, after=None, epoch=1, allowance=FREE):
    """A block that takes what is there, behind the round before."""
    extends = round_ - 1 if after is None else after
    return block(round_, 1, extends_round=extends, epoch=epoch, allowance=allowance)


@pytest.fixture
def lending():
    return Lending()


@pytest.fixture
def table(lending):
    return Table(lending=lending)


@pytest.fixture
def begun(table):
    """Session `s` has said its first token."""
    table.opened()
    table.verdict(block(1, 0))
    return table


AFTER = (*PROMPT, TEXT[0])


def test_what_is_there_is_verified_as_if_it_had_been_sent(begun, lending):
    tokens = (TEXT[1], other(TEXT[1]), TEXT[2])
    lending.handover.leave(draft(tokens, (-1, -1, 0)), AFTER)
    verdict = begun.verdict(taking(2))
    assert (verdict.base_len, verdict.accepted, verdict.accepted_nodes) == (1, 2, (0, 2))
    assert verdict.token_ids == TEXT[1:4]
    assert verdict.taken.tree.token_ids == tokens
    assert verdict.draft_tokens == 3


@pytest.mark.parametrize("mode", EXACT)
def test_the_text_is_the_targets_whatever_was_left_there(table, lending, mode):
    """Behind rejections as behind what was accepted, with trees that are right and wrong."""
    opened = table.opened(mode=mode)
    text, source, output = target_text(opened, 40), random.Random(3), []
    output += table.verdict(block(1, 0)).token_ids
    round_ = 2
    while len(output) < 36:
        tokens = [source.choice((text[len(output) + node // 2], 1)) for node in range(5)]
        parents = tuple(source.randrange(-1, node) if node else -1 for node in range(5))
        lending.handover.leave(draft(tokens, parents), (*PROMPT, *output))
        verdict = table.verdict(taking(round_))
        assert (verdict.base_len, verdict.discarded) == (len(output), False)
        output += verdict.token_ids
        round_ += 1
    assert output == text[: len(output)]
    assert round_ < 36


def test_its_epoch_says_nothing_of_an_open_end(table):
    table.opened()
    table.verdict(block(1, 0, [other(TEXT[0])]))
    second, third = table.run(taking(2), taking(3, epoch=2))
    assert (second.base_len, third.base_len) == (1, 2)
    assert (*second.token_ids, *third.token_ids) == TEXT[1:3]


def test_it_follows_the_round_that_it_names_and_no_other(begun):
    assert begun.verdict(taking(2, after=7)).discarded


def test_nothing_follows_a_token_that_ends_the_text(table):
    table.opened(stop_token_ids=TEXT[:1])
    _, second = table.run(block(1, 0), taking(2))
    assert second.discarded


def test_what_is_taken_leaves_room_for_the_token_after_it(table, lending):
    table.opened(max_tokens=4)
    table.verdict(block(1, 0))
    lending.handover.leave(draft([*TEXT[1:4], 1, 2]), AFTER)
    verdict = table.verdict(taking(2))
    assert verdict.token_ids == TEXT[1:4]
    assert verdict.taken.tree.token_ids == TEXT[1:3]


@pytest.mark.parametrize("tokens", [(VOCAB,), (0, -1)])
def test_a_draft_that_is_none_is_left_and_the_round_is_plain(begun, lending, tokens):
    lending.handover.leave(draft(tokens), AFTER)
    verdict = begun.verdict(taking(2))
    assert verdict.taken == t.TakenDraft()
    assert verdict.token_ids == TEXT[1:2]


BAD = {
    "beside a tree": block(2, 1, [1], extends_round=1, allowance=FREE),
    "behind nothing": block(2, 1, allowance=FREE),
    "factors": taking(2, allowance=t.Allowance((0.1,), (1.0,) * 5)),
    "prices": taking(2, allowance=t.Allowance((0.1,) * 257, (1.0,) * 6)),
    "a price that is none": taking(2, allowance=t.Allowance((math.nan,), (1.0,) * 6)),
    "a factor without end": taking(2, allowance=t.Allowance((0.1,), (math.inf,) * 6)),
}


@pytest.mark.parametrize("command", BAD.values(), ids=BAD)
def test_an_allowance_that_is_none_is_refused_in_a_sentence(begun, command):
    failed = begun.failure(command)
    assert failed.reason is t.FailureReason.INVALID
    assert "allowance" in failed.message


def test_nobody_takes_drafts_where_none_are_made_or_where_they_are_drawn(table):
    for own, mode in ((Table(), t.VerifyMode.GREEDY), (table, t.VerifyMode.STANDARD)):
        own.opened(mode=mode)
        own.verdict(block(1, 0))
        assert "allowance" in own.failure(taking(2)).message
