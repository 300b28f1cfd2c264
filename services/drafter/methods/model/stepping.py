"""What a step of the draft model asks of one session, whatever shape its drafts have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.drafter.comb import Level
from services.drafter.methods.model.candidates import Place
from services.drafter.methods.model.forms import TextForm
from services.drafter.protocol import Ask, Proposed
from services.engine.port import KVCache


@dataclass(frozen=True, slots=True)
class Feed:
    """Tokens of one session for its KV.

    A chain (`parents` None) follows the text; `complete`: the last of it ends there,
    so that what follows can be chosen. Nodes of a tree follow what `parents` says,
    counted from `base` (see `Segment`), and something can be chosen after each.
    `ahead`: how many of a chain's last tokens are look-ahead rows behind its text.
    """

    token_ids: Sequence[int]
    complete: bool = True
    parents: Sequence[int] | None = None
    base: int | None = None
    ahead: int = 0

    @property
    def rows(self) -> int:
        """How many of the last tokens need logits."""
        return int(self.complete) + self.ahead if self.parents is None else len(self.token_ids)


class Stepping(Protocol):
    """One session of a drafter that steps a draft model."""

    cache: KVCache
    vocab_size: int
    """Ids below it may be proposed."""
    caught_up: bool
    """Its prompt is in KV."""
    form: TextForm | None
    """What the output must be, where that is to be followed."""

    def rewind(self, length: int) -> None:
        """The first `length` tokens of the text stay."""

    def follow(self, ask: Ask) -> None:
        """Keep of the draft and of KV what is right for the text as it is now."""

    def may_draft(self, ask: Ask) -> bool:
        """Whether a draft may start here, or one has."""

    def drafted(self, ask: Ask) -> Proposed | None:
        """The draft, if nothing has to be fed for it."""

    def feed(self, ask: Ask, most: int) -> Feed:
        """What enters KV next: `most` tokens or fewer, at least one."""

    def entered(self, feed: Feed) -> None:
        """It is in KV."""

    def places(self, ask: Ask) -> list[Place]:
        """Where candidates are wanted: one place per row of the feed."""

    def absorb(self, levels: Sequence[Level], ask: Ask) -> Proposed:
        """Take the candidates in; the draft, if it is there."""
