"""Chained blocks, duplicates, and blocks that come late, early or twice."""

import random

import pytest

from services.contract.types import FailureReason, VerifyOpened
from tests.fake_engine import VOCAB, FakeEngine
from tests.services.verifier_bench import (
    COUPLED,
    EXACT,
    PROMPT,
    TEXT,
    Table,
    block,
    opening,
    other,
    target_text,
)


def test_a_chained_block_follows_one_without_bonus_as_it_is(table):
    first, second = table.run(
        block(1, 0, TEXT[:3], want_bonus=False), block(2, 3, TEXT[3:6], extends_round=1)
    )
    assert first.token_ids == TEXT[:3]
    assert (second.base_len, second.token_ids, second.accepted) == (3, TEXT[3:7], 3)


def test_a_bonus_that_is_the_next_blocks_first_token_counts_as_committed(table):
    first, second = table.run(block(1, 0, TEXT[:3]), block(2, 3, TEXT[3:6], extends_round=1))
    assert first.token_ids == TEXT[:4]
    assert (second.base_len, second.token_ids) == (4, TEXT[4:7])
    assert (second.accepted, second.draft_tokens, second.all_accepted) == (2, 2, True)


def test_a_bonus_that_is_the_whole_next_block_still_gives_a_token(table):
    _, second = table.run(
        block(1, 0, TEXT[:3]), block(2, 3, TEXT[3:4], extends_round=1, want_bonus=False)
    )
    assert (second.base_len, second.token_ids, second.accepted) == (4, TEXT[4:5], 0)


def test_a_bonus_that_differs_discards_the_next_block_without_a_forward(table):
    forwards = len(table.engine.forwards)
    _, second, third = table.run(
        block(1, 0, TEXT[:3]),
        block(2, 3, [other(TEXT[3]), 0], extends_round=1),
        block(3, 5, [0], extends_round=2),
    )
    assert second.discarded
    assert third.discarded
    assert (second.token_ids, second.draft_tokens, second.base_len) == ((), 0, 3)
    assert len(table.engine.forwards) == forwards + 1


def test_a_rejection_discards_every_block_chained_behind_it(table):
    _, *later = table.run(
        block(1, 0, [TEXT[0], other(TEXT[1])]),
        block(2, 2, TEXT[2:3], extends_round=1),
        block(3, 3, TEXT[3:4], extends_round=2),
    )
    assert [verdict.discarded for verdict in later] == [True, True]
    assert table.verdict(block(4, 2, TEXT[2:4], epoch=2)).accepted == 2


DISCARDED = {
    "extends a rejected one, wherever it begins": (
        [block(1, 0, [TEXT[0], other(TEXT[1])])],
        block(2, 1, TEXT[1:3], extends_round=1),
    ),
    "extends an unknown round": ([], block(5, 0, TEXT[:2], extends_round=4)),
    "extends an older round": (
        [block(1, 0, TEXT[:2], want_bonus=False), block(2, 2, TEXT[2:4])],
        block(3, 5, TEXT[5:7], extends_round=1),
    ),
    "is of an older epoch": ([block(1, 0, TEXT[:1], epoch=3)], block(2, 2, TEXT[2:3], epoch=2)),
    "is empty behind a bonus": ([block(1, 0, TEXT[:2])], block(2, 2, extends_round=1)),
    "begins before the end of the text": ([block(1, 0, TEXT[:1])], block(2, 0, [0])),
    "begins at the last token": ([block(1, 0, TEXT[:1])], block(2, 1, [0])),
    "begins behind the end of the text": ([block(1, 0, TEXT[:1])], block(2, 3, [0])),
    "begins far behind the end of the text": ([block(1, 0, TEXT[:1])], block(2, 400, [0])),
}


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(("before", "late"), DISCARDED.values(), ids=DISCARDED)
def test_a_block_is_discarded_that(table, before, late, at_once):
    verdicts = table.run(*before, late) if at_once else [*table.run(*before), *table.run(late)]
    assert (verdicts[-1].round, verdicts[-1].discarded) == (late.round, True)
    assert verdicts[-1].base_len == late.base_len
    # The session goes on behind what it said.
    said = sum(len(verdict.token_ids) for verdict in verdicts)
    assert table.verdict(block(9, said, epoch=5)).token_ids == TEXT[said : said + 1]


def test_a_long_chain_of_blocks_gives_the_targets_text(table):
    blocks = [
        block(i + 1, 3 * i, TEXT[3 * i : 3 * i + 3], extends_round=i, want_bonus=i % 2 == 0)
        for i in range(9)
    ]
    output = ()
    for verdict in table.run(*blocks):
        assert not verdict.discarded
        assert verdict.base_len == len(output)
        output += verdict.token_ids
    assert output[:27] == TEXT[:27]


def test_an_empty_block_chained_without_bonus_emits_the_next_token(table):
    _, second = table.run(
        block(1, 0, TEXT[:2], want_bonus=False), block(2, 2, extends_round=1, want_bonus=False)
    )
    assert second.token_ids == TEXT[2:3]


def test_a_block_may_stand_behind_the_bonus_whatever_that_is(table):
    first, second, third = table.run(
        block(1, 0), block(2, 1, extends_round=1), block(3, 2, TEXT[2:4], extends_round=2)
    )
    assert (first.token_ids, second.token_ids) == (TEXT[:1], TEXT[1:2])
    assert (second.base_len, third.base_len) == (1, 2)
    assert third.token_ids == TEXT[2:5]


def test_two_plain_blocks_of_a_session_take_a_step_each(table):
    table.give(block(1, 0), block(2, 1, extends_round=1))
    before = table.core.progress().steps
    for number in (0, 1):
        assert table.core.step()
        assert table.core.progress().steps == before + number + 1
        assert table.taken()[-1].token_ids == TEXT[number : number + 1]


def test_nothing_stands_behind_a_token_that_ends_the_text(table):
    table.opened(opening(stop_token_ids=TEXT[:1], epoch=2))
    first, second = table.run(block(1, 0, epoch=2), block(2, 1, extends_round=1, epoch=2))
    assert first.token_ids == TEXT[:1]
    assert second.discarded


def test_a_block_that_waited_for_its_own_session_lay_in_no_queue():
    now = [0.0]
    engine = FakeEngine()
    table = Table(engine, clock=lambda: now[0])
    table.opened()
    forward = engine.forward

    def slow(segments):
        now[0] += 1.0
        return forward(segments)

    engine.forward = slow
    first, second = table.run(block(1, 0), block(2, 1, extends_round=1))
    assert first.verify_ms == second.verify_ms == 1e3
    assert first.queue_ms == second.queue_ms == 0.0


def test_a_chain_never_extends_a_tree(table):
    _, second = table.run(
        block(1, 0, [TEXT[0], other(TEXT[0])], (-1, -1), want_bonus=False),
        block(2, 1, TEXT[1:3], extends_round=1),
    )
    assert second.discarded
    assert table.verdict(block(3, 1, TEXT[1:3])).accepted == 2


def test_a_tree_may_extend_a_chain_without_bonus(table):
    _, second = table.run(
        block(1, 0, TEXT[:2], want_bonus=False),
        block(2, 2, [other(TEXT[2]), TEXT[2]], (-1, -1), extends_round=1),
    )
    assert second.token_ids == TEXT[2:4]


def test_a_duplicate_is_answered_with_the_stored_verdict_and_never_computed_again(table):
    ask = block(1, 0, [TEXT[0], other(TEXT[1])])
    first = table.verdict(ask)
    forwards = len(table.engine.forwards)
    assert table.verdict(ask) == first
    assert table.verdict(block(1, 0, [0, 0, 0], epoch=9)) == first, "with other content, too"
    assert len(table.engine.forwards) == forwards


def test_a_duplicate_of_a_waiting_block_is_answered_once(table):
    ask = block(1, 0, TEXT[:2])
    assert len(table.run(ask, ask)) == 1


def test_an_outcome_too_old_to_be_kept_is_answered_as_discarded(table):
    asks = [block(i + 1, i) for i in range(5)]
    verdicts = [table.verdict(ask) for ask in asks]
    assert table.verdict(asks[0]).discarded
    assert [table.verdict(ask) for ask in asks[1:]] == verdicts[1:]


def test_a_discarded_round_stays_discarded_when_it_would_fit_later(table):
    early = block(1, 2, TEXT[2:3])
    assert table.verdict(early).discarded
    table.verdict(block(2, 0, TEXT[:1]))
    assert table.verdict(early).discarded


def test_blocks_waiting_with_an_older_epoch_are_discarded(table):
    old, new = table.run(block(1, 0, TEXT[:2], epoch=1), block(2, 0, TEXT[:3], epoch=2))
    assert (old.round, old.discarded) == (1, True)
    assert new.token_ids == TEXT[:4]


def test_rounds_out_of_order_harm_nothing(table):
    events = table.run(block(2, 0, TEXT[:2]), block(1, 0, [0]))
    assert sorted((event.round, event.discarded) for event in events) == [(1, True), (2, False)]


def test_a_doubled_open_is_answered_again_and_keeps_the_text(table):
    table.verdict(block(1, 0, TEXT[:2]))
    assert isinstance(table.run(opening())[0], VerifyOpened)
    assert table.verdict(block(2, 3)).token_ids == TEXT[3:4]


def test_a_doubled_open_during_the_prefill_is_answered_once():
    assert len(Table().run(opening(), opening())) == 1


def test_a_higher_epoch_opens_the_session_anew(table):
    table.verdict(block(1, 0, TEXT[:6]))
    table.opened(committed=TEXT[:2], epoch=2)
    assert table.verdict(block(2, 2, TEXT[2:4], epoch=2)).accepted == 2
    assert table.core.progress().sessions == 1
    assert table.engine.kv_tokens_used == len(PROMPT) + 40 + 8


def test_a_lower_epoch_opens_nothing(table):
    table.opened(epoch=5)
    assert table.run(opening(epoch=4)) == []
    assert table.core.progress().sessions == 1


def test_an_open_that_a_later_epoch_of_blocks_has_passed_is_ignored(table):
    table.verdict(block(1, 0, TEXT[:1], epoch=6))
    assert table.run(opening(epoch=4)) == []
    assert table.verdict(block(2, 2, epoch=6)).token_ids == TEXT[2:3]


def test_another_mode_needs_a_higher_epoch(table):
    command = table.opened(mode=COUPLED, epoch=2)
    coupled = target_text(command, 3)
    assert table.verdict(block(1, 0, coupled[:2], epoch=2)).token_ids == tuple(coupled)


def test_a_failed_session_can_be_opened_again(table):
    failed = table.failure(block(1, 0, [VOCAB]))
    assert (failed.reason, failed.epoch) == (FailureReason.INVALID, 1)
    assert table.failure(block(2, 0)).reason is FailureReason.UNKNOWN_SESSION
    table.opened(epoch=2)
    assert table.verdict(block(3, 0, TEXT[:1], epoch=2)).accepted == 1


class Sender:
    """A careless orchestrator: up to three blocks in flight, some doubled, some wrong."""

    def __init__(self, text, seed):
        self.text, self.rng = text, random.Random(seed)
        self.round, self.epoch = 0, 1
        self.output, self.flight = [], []

    def next_block(self):
        chained = self.flight and self.rng.random() < 0.8 and len(self.flight) < 3
        if self.flight and not chained:
            return None
        last = self.flight[-1] if chained else None
        base = last.base_len + len(last.tree) if last else len(self.output)
        # Behind the bonus, if that comes and none came before it.
        base += bool(last and last.want_bonus and self.rng.random() < 0.5)
        size = self.rng.randrange(1 if chained else 0, 5)
        tokens = [
            token if self.rng.random() < 0.9 else other(token)
            for token in self.text[base : base + size]
        ]
        self.round += 1
        ask = block(
            self.round,
            base,
            tokens,
            epoch=self.epoch,
            extends_round=last.round if last else 0,
            want_bonus=self.rng.random() < 0.5,
        )
        self.flight.append(ask)
        return ask

    def absorb(self, verdict):
        if not self.flight or verdict.round != self.flight[0].round:
            return
        self.flight.pop(0)
        if verdict.discarded:
            return
        assert verdict.base_len == len(self.output)
        self.output += verdict.token_ids
        if not verdict.all_accepted:
            self.epoch += 1


@pytest.mark.parametrize("mode", EXACT)
@pytest.mark.parametrize("seed", range(25))
def test_a_pipeline_with_losses_and_doubles_gives_the_targets_text(mode, seed):
    table = Table()
    text = target_text(table.opened(mode=mode, max_tokens=60), 80)
    sender = Sender(text, seed)
    for _ in range(400):
        ask = sender.next_block()
        if ask is not None:
            table.give(ask, *[ask] * sender.rng.randrange(2))
        if ask is None or sender.rng.random() < 0.4:
            for event in table.run():
                sender.absorb(event)
        if len(sender.output) >= 60:
            break
    assert len(sender.output) >= 60
    assert sender.output[:60] == text[:60]
