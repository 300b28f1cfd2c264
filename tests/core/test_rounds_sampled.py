"""Drafts that are judged by rejection: when a bonus is asked for, and what survives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.events import (
    DraftArrived,
    Persist,
    SendToDrafter,
    WorkerLost,
)
from services.contract import types as t
from tests.core.machine import Machine

SAMPLED = [t.VerifyMode.STANDARD, t.VerifyMode.BLOCK]
EXACT = [t.VerifyMode.GREEDY, t.VerifyMode.COUPLED]


@pytest.mark.parametrize("mode", EXACT)
def test_an_exact_match_always_brings_the_next_token(mode):
    assert Machine(mode).draft(1, 2, 3).serve().flags() == [True]


@pytest.mark.parametrize("mode", SAMPLED)
def test_no_bonus_is_drawn_where_the_tail_has_a_token_already(mode):
    assert Machine(mode).draft(1, 2, 3, final=True).serve().flags() == [False]


@pytest.mark.parametrize("mode", SAMPLED)
@pytest.mark.parametrize(
    ("options", "final", "bonus"),
    [({}, False, False), ({}, True, True), ({"window": 2}, False, True)],
    ids=["the drafter goes on", "the drafter rests", "the window is full"],
)
def test_a_bonus_ends_the_last_drafted_block(mode, options, final, bonus):
    assert Machine(mode, **options).draft(1, 2, final=final).serve().flags() == [bonus]


@pytest.mark.parametrize("mode", SAMPLED)
def test_the_block_that_reaches_the_length_limit_takes_the_last_token_along(mode):
    assert Machine(mode, max_tokens=3).draft(1, 2, 3).serve().flags() == [True]


@pytest.mark.parametrize("mode", SAMPLED)
def test_a_tree_and_a_plain_round_end_with_a_token_of_the_target(mode):
    machine = Machine(mode, num_candidates=2).draft(final=True).serve()
    machine.answer(1, accepted=0, whole=True).draft(2, 3, parents=(-1, -1))
    assert machine.flags() == [True, True]
    assert [len(block.tree) for block in machine.sent()] == [0, 2]


@pytest.mark.parametrize("mode", SAMPLED)
def test_a_block_behind_another_draws_no_bonus_for_the_commit_wakes_the_drafter(mode):
    machine = Machine(mode, max_in_flight=2).draft(1, 2, 3, 4, final=True).serve()
    assert (machine.flags(), machine.sent()[1].extends_round) == ([False, False], 1)


@pytest.mark.parametrize("mode", list(t.VerifyMode))
def test_nothing_is_chained_behind_a_bonus_that_is_no_part_of_the_draft(mode):
    machine = Machine(mode, max_in_flight=2).draft(1, 2, final=True).serve()
    machine.draft(3, 4, final=True)
    assert len(machine.sent()) == (2 if mode.exact_match else 1)


LENGTHS = st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=4)


@given(LENGTHS, st.sampled_from(SAMPLED), st.integers(1, 3), st.data())
def test_what_is_sent_depends_on_no_token_that_was_not_sent(drafts, mode, flight, data):
    def run(offset: int) -> list:
        machine = Machine(mode, window=12, max_in_flight=flight)
        place = 0
        for length, final in drafts:
            machine.draft(*range(offset + place, offset + place + length), final=final)
            place += length
        machine.serve()
        return [(len(b.tree), b.base_len, b.extends_round, b.want_bonus) for b in machine.sent()]

    assert run(1) == run(data.draw(st.integers(2, 80)))


@pytest.mark.parametrize("mode", SAMPLED)
def test_a_bonus_that_the_tail_starts_with_keeps_the_rest_of_it(mode):
    machine = Machine(mode).draft(final=True).serve().draft(5, 6, 8)
    machine.answer(5, accepted=0, whole=True)
    assert (machine.state.epoch, machine.state.committed) == (1, (5,))
    assert [block.tree.token_ids for block in machine.sent()] == [(), (6, 8)]


@pytest.mark.parametrize("mode", SAMPLED)
@pytest.mark.parametrize("tail", [(), (6, 8)])
def test_any_other_bonus_ends_the_epoch(mode, tail):
    machine = Machine(mode).draft(final=True).serve()
    if tail:
        machine.draft(*tail)
    machine.answer(5, accepted=0, whole=True)
    assert (machine.state.epoch, machine.state.tail) == (2, ())
    told = machine.performed(SendToDrafter)[-1].message
    assert (told.epoch, told.token_ids) == (2, (5,))


def test_plain_rounds_without_a_drafter_stay_in_their_epoch():
    machine = Machine(t.VerifyMode.BLOCK).feed(WorkerLost(0.0, t.Role.DRAFTER, "d"))
    epoch = machine.state.epoch
    machine.serve().answer(5, accepted=0, whole=True)
    assert machine.state.epoch == epoch


@pytest.mark.parametrize("mode", SAMPLED)
def test_a_block_of_the_drafters_own_keeps_what_it_draws_meanwhile(mode):
    machine = Machine(mode).draft(1, 2).serve().answer(1, 2, accepted=2, whole=True)
    assert machine.state.epoch == 1
    told = machine.performed(SendToDrafter)[-1].message
    assert (told.epoch, told.token_ids) == (1, (1, 2))


@pytest.mark.parametrize("mode", SAMPLED)
@pytest.mark.parametrize(("follows", "epochs"), [((), 1), ((1, 2, 9), 0)])
def test_a_drafter_that_was_not_there_for_a_block_starts_anew_unless_it_follows_it(
    mode, follows, epochs
):
    machine = Machine(mode, count=3).draft(1, 2, 3).draft(4).serve()
    machine.feed(WorkerLost(0.0, t.Role.DRAFTER, "d")).attach(t.Role.DRAFTER, "e")
    before = machine.state.epoch
    if follows:
        drafted = t.DraftTree((1, 2, 3, 9), proposal=t.Proposal.SAMPLED)
        machine.feed(DraftArrived(0.0, "e", t.Draft("s", before, 0, 0, t.EMPTY_HASH, drafted)))
    machine.answer(1, 2, 3, accepted=3, whole=True)
    assert machine.state.epoch == before + epochs
    assert machine.state.verifier is not None


def test_a_round_is_recorded_with_the_rule_that_judged_it():
    machine = Machine(t.VerifyMode.BLOCK).draft(final=True).serve()
    machine.mode = t.VerifyMode.STANDARD
    machine.answer(5, accepted=0, whole=True)
    assert machine.performed(Persist)[-1].commit.record.mode is t.VerifyMode.STANDARD


def test_every_token_keeps_its_own_row_where_its_neighbours_row_is_missing():
    machine = Machine(t.VerifyMode.BLOCK, count=3)
    row = t.SparseRow((2,), (1.0,))
    for token, q in ((1, None), (2, (row,)), (3, (row, row))):
        state = machine.state
        text = state.speculated
        tree = t.DraftTree((token,), q=q, proposal=t.Proposal.SAMPLED)
        prefix = t.extend_hash(t.EMPTY_HASH, text)
        machine.feed(DraftArrived(0.0, "d", t.Draft("s", state.epoch, 0, len(text), prefix, tree)))
    machine.serve()
    assert machine.sent()[0].tree.q == (t.SparseRow((), ()), row, row)


@pytest.mark.parametrize("mode", SAMPLED)
def test_a_new_drafter_whose_only_token_is_the_bonus_need_not_start_anew(mode):
    machine = Machine(mode).draft(final=True).serve().feed(WorkerLost(0.0, t.Role.DRAFTER, "d"))
    machine.attach(t.Role.DRAFTER, "e")
    before = machine.state.epoch
    machine.draft(5, worker="e").answer(5, accepted=0, whole=True)
    assert (machine.state.epoch, machine.state.tail) == (before, ())
