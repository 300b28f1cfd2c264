"""With what a round left, and if with no draft, why."""

from __future__ import annotations

from enum import Enum

from orchestrator.core.events import DraftArrived, Event
from orchestrator.core.state import Block, State


class Sent(Enum):
    """Each block but that of the opening is one of these."""

    DRAFT = "with a draft"
    UNPAID = "nothing of the draft paid"
    NOTHING = "the drafter had nothing"
    LATE = "the draft came late"
    RESTED = "the drafter rested"
    LAST = "there was room for no draft"


def sent_as(block: Block, event: Event, before: State, after: State) -> Sent:
    """What `block` left as, in the step that absorbed `event`."""
    if block.piece.tree.token_ids:
        return Sent.DRAFT
    if after.policy.window == 0:
        return Sent.RESTED
    if len(after.committed) + 1 >= after.config.sampling.max_tokens:
        return Sent.LAST
    if before.tail or (isinstance(event, DraftArrived) and event.draft.tree.token_ids):
        return Sent.UNPAID
    return Sent.NOTHING if after.drafter_final else Sent.LATE
