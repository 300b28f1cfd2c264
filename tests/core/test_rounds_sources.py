"""Draft tokens that the verifier has judged: where they came from, and which were not taken."""

import pytest

from orchestrator.core.events import Persist, Release, SendVerify
from services.contract.types import DraftSource, Role, VerifyMode
from tests.core.machine import Machine
from tests.core.world import Faults, World

TEXT, OTHERS, LAWS = DraftSource.THIS_TEXT, DraftSource.OTHER_TEXTS, DraftSource.LAWS
PARENTS, REACH = (-1, -1, 0, 2), (0.5, 0.4, 0.3, 0.2)


def estimated(**options) -> Machine:
    tree = {"num_candidates": 8, "estimated": True, "count": 3, "method": "ngram"}
    return Machine(VerifyMode.COUPLED, **tree | options)


def counted(machine: Machine) -> list[tuple[tuple[int, int, int], ...]]:
    return [tuple(map(tuple, one.commit.record.sources)) for one in machine.performed(Persist)]


def test_of_a_tree_that_is_cut_what_was_sent_is_counted_and_what_was_taken_of_it():
    machine = estimated()
    said = bytes([TEXT, LAWS, OTHERS, TEXT])
    machine.draft(1, 2, 3, 4, parents=PARENTS, reach=REACH, final=True, sources=said).serve()
    machine.answer(1, 3, 9, accepted=2, whole=True, nodes=(0, 2))
    assert counted(machine) == [((TEXT, 1, 1), (OTHERS, 1, 1), (LAWS, 1, 0))]


def test_of_a_tree_that_is_cut_to_a_chain_the_first_tokens_are_the_accepted_ones():
    machine = estimated(count=2)
    machine.draft(1, 2, 3, parents=(-1, 0, -1), reach=(0.5, 0.4, 0.3), sources=b"\1\3\2")
    machine.serve().answer(1, 7, accepted=1, whole=False)
    assert counted(machine) == [((TEXT, 1, 1), (LAWS, 1, 0))]


def test_what_is_not_sent_is_not_counted():
    machine = estimated(count=0)
    machine.draft(1, 2, parents=(-1, 0), reach=(0.5, 0.4), final=True, sources=b"\1\1").serve()
    machine.answer(1, accepted=0, whole=True)
    assert counted(machine) == [()]


def test_chains_that_arrive_apart_and_leave_together_keep_their_sources():
    machine = Machine(VerifyMode.GREEDY, count=3, method="ngram,model")
    machine.draft(1, 2, sources=bytes([TEXT, TEXT]))
    machine.draft(3, 4, sources=bytes([DraftSource.MODEL] * 2)).serve()
    machine.answer(1, 2, 9, accepted=2, whole=False)
    assert counted(machine) == [((TEXT, 2, 2), (DraftSource.MODEL, 1, 0))]


def test_a_bonus_that_was_drafted_next_leaves_the_rest_with_their_own_sources():
    machine = Machine(VerifyMode.GREEDY, count=1, method="ngram")
    machine.draft(1, 2, 3, sources=bytes([TEXT, OTHERS, LAWS])).serve()
    machine.answer(1, 2, accepted=1, whole=True).answer(3, 5, accepted=1, whole=True)
    assert counted(machine) == [((TEXT, 1, 1),), ((LAWS, 1, 1),)]


@pytest.mark.parametrize(
    ("method", "source"),
    [
        ("model", DraftSource.MODEL),
        ("graph", DraftSource.GRAPH),
        ("skip", DraftSource.SKIP),
        ("lookahead", DraftSource.LOOKAHEAD),
        ("ngram", DraftSource.UNSPECIFIED),
        ("ngram,model", DraftSource.UNSPECIFIED),
        ("unheard of", DraftSource.UNSPECIFIED),
    ],
)
def test_a_drafter_that_says_no_sources_drafts_from_its_method(method, source):
    machine = Machine(VerifyMode.GREEDY, method=method).draft(1, 2).serve()
    machine.answer(1, 9, accepted=1, whole=False)
    assert counted(machine) == [((source, 2, 1),)]


def test_a_source_that_nobody_knows_is_unspecified():
    machine = Machine(VerifyMode.GREEDY).draft(1, 2, sources=bytes([100, 255])).serve()
    machine.answer(1, 9, accepted=1, whole=False)
    assert counted(machine) == [((DraftSource.UNSPECIFIED, 2, 1),)]


@pytest.mark.parametrize("sources", [b"\1", b"\1\1\1"])
@pytest.mark.parametrize("reach", [(), (0.5, 0.4)])
def test_more_or_fewer_sources_than_tokens_end_their_drafters_part(sources, reach):
    machine = estimated().draft(1, 2, parents=(-1, 0), reach=reach, sources=sources)
    assert machine.performed(Release) == [Release(Role.DRAFTER, "d")]
    assert not machine.state.tail


def test_sources_without_a_token_end_their_drafters_part():
    machine = Machine(VerifyMode.GREEDY).draft(final=True, sources=b"\1")
    assert machine.performed(Release) == [Release(Role.DRAFTER, "d")]


# --- not taken ----------------------------------------------------------------------


PACED = {"pacing": "eager", "max_in_flight": 2}


def sent_and_committed(world: World):
    """Every block by its round, and every commit."""
    actions = [action for _, done in world.trace for action in done]
    sent = {a.message.round: a.message.tree for a in actions if isinstance(a, SendVerify)}
    return sent, [action.commit for action in actions if isinstance(action, Persist)]


@pytest.mark.parametrize("mode", [VerifyMode.GREEDY, VerifyMode.STANDARD])
@pytest.mark.parametrize("seed", [1, 2, 4, 5, 7])
def test_a_block_is_what_was_accepted_and_what_was_rejected(mode, seed):
    world = World(seed, Faults(accuracy=0.6), mode=mode, **PACED, max_tokens=64).run()
    sent, commits = sent_and_committed(world)
    assert any(commit.record.rejected for commit in commits)
    for commit in commits:
        record = commit.record
        block = sent[record.round].token_ids
        # A block may lose its first token to the bonus before it.
        assert block[len(block) - record.draft_tokens :][record.accepted_tokens :] == (
            record.rejected
        )


def test_what_was_drafted_beyond_a_rejection_is_void_and_beyond_an_acceptance_is_not():
    _, commits = sent_and_committed(World(3, Faults(accuracy=0.8), **PACED, max_tokens=128).run())
    assert any(commit.record.unjudged for commit in [c for c in commits if c.record.rejected])
    for commit in commits:
        record = commit.record
        whole = not record.rejected and commit.ending is None
        if whole and record.emitted_tokens == record.accepted_tokens:
            assert record.unjudged == ()
