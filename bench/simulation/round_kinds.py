"""Whether a round carried a draft, and if not, why."""

from __future__ import annotations

from enum import Enum

from orchestrator.core.events import DraftArrived, Event
from orchestrator.core.state import Block, State


class RoundKind(Enum):
    """Every block except the opening one is one of these."""

    DRAFT = "with a draft"
    UNPAID = "nothing of the draft paid"
    NOTHING = "the drafter had nothing"
    LATE = "the draft came late"
    RESTED = "the drafter rested"
    LAST = "there was room for no draft"


def kind_of(block: Block, event: Event, before: State, after: State) -> RoundKind:
    """The kind of `block`, sent in the step that absorbed `event`."""
    if block.piece.tree.token_ids:
        return RoundKind.DRAFT
    if after.policy.window == 0:
        return RoundKind.RESTED
    if len(after.committed) + 1 >= after.config.sampling.max_tokens:
        return RoundKind.LAST
    if before.tail or (isinstance(event, DraftArrived) and event.draft.tree.token_ids):
        return RoundKind.UNPAID
    return RoundKind.NOTHING if after.drafter_final else RoundKind.LATE
