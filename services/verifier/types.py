"""What a session's parts hand to each other: its key, its blocks, and what its drafter was told."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from services.contract.types import DraftTree, TakenDraft, Verify
from services.verifier.fed_text import Telling

Key = tuple[int, str]
"""(link number, session id)."""


@dataclass(frozen=True, slots=True)
class Block:
    """A Verify command and when it arrived, in seconds of the worker's clock.

    `taken`: what a block with an allowance took, once it did; the command's tree is that then.
    """

    command: Verify
    arrived: float
    taken: TakenDraft | None = None

    @property
    def rows(self) -> int:
        """Rows of a forward, as a rule."""
        return 1 + len(self.command.tree)


@dataclass(frozen=True, slots=True)
class Task:
    """A block that fits: `tree` is what is left to verify after output[:base_len].

    `nodes` maps the tree's indices to those of the command's tree.
    """

    block: Block
    base_len: int
    tree: DraftTree
    nodes: tuple[int, ...]

    @property
    def always_emits(self) -> bool:
        """Whether a token is emitted even after full acceptance."""
        return self.block.command.want_bonus or len(self.tree) == 0


@dataclass(slots=True)
class HeldTelling(Telling):
    """What a session's drafter was told, with a row that waits.

    `held`: the row [width] behind the text, where its logits are retained. `beside`: whether
    the drafter in this process has had the session; None before the first verdict, when its
    opening may be on the way.
    """

    held: Tensor | None = None
    beside: bool | None = None
