"""Drafting in the verifier's own process and thread, without a session protocol of its own.

The verifier asks before a step, for sessions that named a local method and whose mailbox holds no
draft; what is proposed goes into that mailbox, as a drafter's draft would.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

from services.contract.states import StateShape
from services.contract.types import DraftTree
from services.contract.worker_messages import StartVerify


class LocalAsk(NamedTuple):
    """A draft is asked for behind `text`, prompt and output, which is the verifier's own list.

    `room`: how many tokens (of a tree: levels) may follow it, and `nodes` in all. `top_rows`: what
    the target said at the rows of the session's last draft, where that was asked for; see
    `services.contract.top_rows`. `draft_key`: the key of this draft's random draws; used for
    no other draft.
    """

    key: Hashable
    text: Sequence[int]
    room: int
    nodes: int
    top_rows: bytes = b""
    draft_key: int = 0


class LocalDraft(NamedTuple):
    """A draft; an empty tree: none. `reach` and `sources` are by token; `draft_ms`: its time."""

    tree: DraftTree = DraftTree()
    reach: tuple[float, ...] = ()
    sources: bytes = b""
    draft_ms: float = 0.0


class Proposer(Protocol):
    """Drafts for a verifier's sessions. Keys are (link, handle)."""

    @property
    def capabilities(self) -> tuple[str, ...]:
        """That these methods are here, and what they are able to."""

    @property
    def recalled_tokens(self) -> int:
        """How many tokens were drafted so far from texts of other sessions."""

    def needed_states(self, method: str, /) -> StateShape:
        """The target's states that a method, or several joined by commas, drafts from."""

    def open(self, key: Hashable, opening: StartVerify, /) -> None:
        """A session has begun, or begun anew. Raises what refuses the session."""

    def close(self, key: Hashable, /) -> None:
        """A session is gone."""

    def propose(self, asks: Sequence[LocalAsk], /) -> list[LocalDraft]:
        """A draft for each, in their order, for the step that is about to run."""

    def anchor(self, key: Hashable, position: int, states: bytes, /) -> None:
        """The target's states at tokens of a text from `position` on, prompt and output."""

    def idle(self, asks: Sequence[LocalAsk], /) -> bool:
        """No step can run now: draft ahead for these texts. Whether there was something to do."""
