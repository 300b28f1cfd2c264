"""Draft tokens that the text did not take are named, once each."""

import pytest

from orchestrator.core.events import Persist, SendVerify
from services.contract.types import VerifyMode
from tests.core.world import Faults, World

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
    world = World(3, Faults(accuracy=0.8), **PACED, max_tokens=128).run()
    _, commits = sent_and_committed(world)
    rejecting = [c for c in commits if c.record.rejected]
    assert any(commit.record.unjudged for commit in rejecting)
    for commit in commits:
        record = commit.record
        whole = not record.rejected and commit.ending is None
        if whole and record.emitted_tokens == record.accepted_tokens:
            assert record.unjudged == ()
