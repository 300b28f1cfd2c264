"""Drafts that are trees: which ones are taken, and what a verdict may say of them."""

from dataclasses import replace

import pytest

from orchestrator.core.events import OpenOnWorker, Release
from services.contract.types import OpenDraft, OpenVerify, Role, VerifyMode
from tests.core.machine import Machine


@pytest.mark.parametrize(
    ("options", "tokens", "parents"),
    [
        ({"num_candidates": 1}, (1, 2), (-1, -1)),
        ({}, (1, 2, 3), (-1, -1, 2)),
        ({}, (1, 2, 3), (-1, -1, -2)),
        ({"window": 2}, (1, 2, 3, 4), (-1, -1, 1, 2)),
        ({}, (1,) * 257, (-1,) * 257),
        ({}, (1, 100), (-1, -1)),
        ({}, (1, 2, 3), (-1, -1)),
        ({}, (1, 2), (-1, -1, 0)),
        ({"num_candidates": 1}, (1, 2, 3, 4, 5, 6), (-1, 0)),
        ({}, (), (-1,)),
    ],
    ids=[
        "not asked for",
        "own parent",
        "no parent",
        "too deep",
        "too many",
        "vocabulary",
        "parents missing",
        "parents left over",
        "chain longer than its parents and the window",
        "parents of nothing",
    ],
)
def test_a_tree_that_no_session_asked_for_ends_its_drafters_part(options, tokens, parents):
    machine = Machine(VerifyMode.COUPLED, **{"num_candidates": 2} | options)
    machine.draft(*tokens, parents=parents)
    assert machine.performed(Release) == [Release(Role.DRAFTER, "d")]
    assert not machine.state.tail


def test_a_tree_as_deep_as_the_window_is_sent_whole_and_alone():
    machine = Machine(VerifyMode.COUPLED, window=2, num_candidates=2, max_in_flight=2)
    machine.draft(1, 2, 3, parents=(-1, -1, 1), final=True).serve().draft(4, final=True)
    assert [block.tree.token_ids for block in machine.sent()] == [(1, 2, 3)]


def test_accepted_nodes_must_be_a_path_of_the_tree():
    for nodes, tokens, fits in [((1, 2), (2, 3, 9), True), ((0, 2), (1, 3, 9), False)]:
        machine = Machine(VerifyMode.COUPLED, num_candidates=2)
        machine.draft(1, 2, 3, parents=(-1, -1, 1), final=True).serve()
        machine.answer(*tokens, accepted=2, whole=True, nodes=nodes)
        assert (machine.state.committed == tokens) is fits
        assert (machine.state.verifier is not None) is fits


def test_workers_are_told_what_a_block_may_hold():
    machine = Machine(VerifyMode.COUPLED, num_candidates=2).serve()
    draft, verify = (action.message for action in machine.performed(OpenOnWorker))
    assert isinstance(draft, OpenDraft)
    assert isinstance(verify, OpenVerify)
    assert (draft.num_candidates, draft.window, draft.vocab_size) == (2, 4, 100)
    assert verify.window == machine.state.config.limits.max_tree_nodes
    assert replace(machine.state.config, num_candidates=1).largest_block == 4


def estimated(**options) -> Machine:
    return Machine(
        VerifyMode.COUPLED, **{"num_candidates": 8, "estimated": True, "count": 3} | options
    )


def test_a_tree_with_chances_is_cut_to_a_beginning_and_the_rest_is_void():
    machine = estimated()
    machine.draft(1, 2, 3, 4, parents=(-1, -1, 0, 2), reach=(0.5, 0.4, 0.3, 0.2), final=True)
    machine.serve()
    (block,) = machine.sent()
    assert (block.tree.token_ids, block.tree.parents) == ((1, 2, 3), (-1, -1, 0))
    assert not machine.state.tail
    machine.answer(1, 3, 9, accepted=2, whole=True, nodes=(0, 2))
    assert (machine.state.committed, machine.state.epoch) == ((1, 3, 9), 1)


def test_what_is_cut_to_a_chain_is_verified_as_one():
    machine = estimated(count=2)
    machine.draft(1, 2, 3, parents=(-1, 0, -1), reach=(0.5, 0.4, 0.3), final=True).serve()
    (block,) = machine.sent()
    assert (block.tree.token_ids, block.tree.parents) == ((1, 2), None)
    machine.answer(1, 7, accepted=1, whole=False)
    assert machine.state.committed == (1, 7)


def test_where_no_node_pays_the_target_speaks_alone_and_the_tree_is_void():
    machine = estimated(count=0).draft(1, 2, parents=(-1, 0), reach=(0.5, 0.4), final=True)
    machine.serve()
    (block,) = machine.sent()
    assert block.tree.token_ids == ()
    machine.answer(1, accepted=0, whole=True)
    assert (machine.state.committed, machine.state.tail, machine.state.epoch) == ((1,), (), 1)


def test_nothing_follows_a_chain_with_chances():
    machine = estimated().draft(1, 2, parents=(-1, 0), reach=(0.9, 0.8), final=True).draft(3)
    machine.serve().draft(4)
    assert [block.tree.token_ids for block in machine.sent()] == [(1, 2)]
    assert machine.state.epoch == 1


@pytest.mark.parametrize(
    "reach",
    [(0.5,), (0.5, 0.4, 0.3), (0.4, 0.5), (1.5, 0.5), (0.5, -0.1), (float("nan"), 0.1)],
)
def test_chances_that_are_none_end_their_drafters_part(reach):
    machine = estimated().draft(1, 2, parents=(-1, -1), reach=reach, final=True)
    assert machine.performed(Release) == [Release(Role.DRAFTER, "d")]
    assert not machine.state.tail


def test_a_verifier_keeps_little_room_for_small_trees():
    assert estimated().state.config.largest_block == 16
