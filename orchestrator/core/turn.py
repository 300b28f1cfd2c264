"""One turn of the round machine in the making: the next state and the actions so far."""

from __future__ import annotations

from typing import Any

from orchestrator.core.drafts import Piece
from orchestrator.core.events import (
    Action,
    NeedWorker,
    Release,
    SendToDrafter,
)
from orchestrator.core.state import State, of_flight, tokens_in
from services.contract.types import CommitDraft, Role, extend_hash

MOST_DOUBLINGS = 3
"""Of the pause before another worker is tried, or of the time that it is given."""


def _copy(state: State) -> State:
    copied = object.__new__(State)
    object.__setattr__(copied, "__dict__", state.__dict__.copy())
    return copied


class Turn:
    """Collects changes within one `step`; nothing outside ever sees it.

    One copy of the state is made, and written to until the step ends: a dozen
    `replace` calls on so wide a record would cost more than the rules.
    """

    __slots__ = ("actions", "fresh", "now", "state")

    def __init__(self, state: State, now: float) -> None:
        self.state = _copy(state)
        self.now = now
        self.actions: list[Action] = []
        # Tokens committed in this turn, which nobody outside knows of yet.
        self.fresh: tuple[int, ...] = ()

    def set(self, **changes: Any) -> None:
        """Change fields of the state."""
        fields = self.state.__dict__
        fields.update(changes)
        if "in_flight" in changes:
            fields.update(of_flight(self.state.in_flight), known_hash=None)
        if "tail" in changes:
            fields.update(drafted=tokens_in(self.state.tail), known_hash=None)
        if "committed" in changes:
            fields["known_hash"] = None

    def append(self, piece: Piece) -> None:
        """Append a piece to the tail, and keep what is known of the text before it."""
        state, tree = self.state, piece.tree
        end_hash = extend_hash(state.end_hash, tree.token_ids) if piece.is_chain else state.end_hash
        drafted = state.drafted + len(tree)
        state.__dict__.update(tail=(*state.tail, piece), drafted=drafted, known_hash=end_hash)

    def do(self, action: Action) -> None:
        """Ask the driver for something; order is kept."""
        self.actions.append(action)

    def bump_epoch(self) -> None:
        """Everything drafted so far is void."""
        self.set(epoch=self.state.epoch + 1, tail=(), resync=False)

    def doom(self) -> None:
        """The blocks in flight will come back discarded, except plain ones that fit any text."""
        blocks = [b if b.behind else b._replace(doomed=True) for b in self.state.in_flight]
        self.set(in_flight=tuple(blocks))

    def tell_drafter(self, top_rows: bytes = b"", states: bytes = b"") -> None:
        """Send the drafter the epoch and the committed tokens that it was not sent yet.

        `top_rows`, `states`: the target's, the latter of all these tokens.
        """
        state = self.state
        if state.drafter is None:
            return
        session, told = state.config.session, state.told
        tokens = state.committed[told:]
        message = CommitDraft(session, state.epoch, told, tokens, top_rows, states)
        self.do(SendToDrafter(state.drafter.worker, message))
        self.set(drafter_final=False, told=len(state.committed), untold_rounds=0, untold_states=())

    def resync_drafter(self) -> None:
        """Void the tail and start the drafter anew from the committed text."""
        self.bump_epoch()
        self.tell_drafter()

    def lose_drafter(self, *, lost: bool = False) -> None:
        """Go on without a drafter, and look for another one later.

        `lost`: it is gone, which is no refusal and costs no attempt.
        """
        state = self.state
        self.release(Role.DRAFTER)
        count = "drafter_losses" if lost else "drafter_failures"
        doublings = min(state.drafter_failures + state.drafter_losses, MOST_DOUBLINGS)
        self.set(
            **{count: getattr(state, count) + 1},
            drafter_final=False,
            drafter_not_before=self.now + state.config.limits.drafter_backoff * 2**doublings,
        )
        self.bump_epoch()

    def release(self, role: Role) -> None:
        """Close the session on the worker of a role, if there is one."""
        attached = self.state.verifier if role is Role.VERIFIER else self.state.drafter
        if attached is not None:
            self.do(Release(role, attached.worker))
        self.set(**{role.value: None}, foreknown=None)

    def release_all(self) -> None:
        """Close the session on both workers; nothing is in flight any more."""
        self.release(Role.VERIFIER)
        self.release(Role.DRAFTER)
        self.set(in_flight=(), early=(), tail=(), drafter_final=False, wait_until=None)

    def need_workers(self) -> None:
        """Ask placement for a missing worker; the verifier first, which a drafter may share."""
        state = self.state
        if state.verifier is None:
            self.do(NeedWorker(Role.VERIFIER))
        elif state.drafter is None and state.wants_drafter and self.now >= state.drafter_not_before:
            self.do(NeedWorker(Role.DRAFTER))
