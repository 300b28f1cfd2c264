"""Comb trees: a trunk of first candidates, with further candidates beside each of them.

Every candidate but a trunk token is a leaf, so only the trunk ever enters KV and
a tree costs one step per level, like a chain. A chain is the comb of one level
with one candidate. The candidates of one node are the k draws of MCSD (Yang et
al., 2401.06706), or the k best of one race with shared noise.

Rules:

1.  A comb stands in front of a text. It grows from the root down, and its shape
    depends on drawn tokens in one way: nothing is drafted after a trunk token
    that ends the text, or the draft. That token is part of the draft.
2.  What is built stays while the text and the draft key do. A comb that `advances`
    (its tokens are a function of the text) also outlives a key, and goes on from a
    text that took in trunk tokens and no others. All else drops it.
3.  K/V of a trunk token that did not become text is dropped before the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.contract.texts import common_prefix
from services.contract.types import DraftTree, Proposal, SparseRow

MAX_TREE_NODES = 256
"""Most nodes of one tree."""


@dataclass(frozen=True, slots=True)
class Level:
    """The candidates at one node, in draw order, and the law they were drawn from.

    The first one is the trunk's. No candidates: there was no finite law. `confidence`:
    the first one's probability by the raw law, `weights`: how likely each is thought to
    be the target's, they fall; both where a method asks for them.
    """

    token_ids: tuple[int, ...]
    q: SparseRow | None = None
    confidence: float = 1.0
    weights: tuple[float, ...] = ()


class Comb:
    """What is drafted in front of the first `root` tokens of a text, as far as it is built."""

    __slots__ = ("_advances", "draft_key", "levels", "root", "trunk")

    def __init__(self, *, advances: bool) -> None:
        self._advances = advances
        self.draft_key = -1
        self.root = 0
        self.levels: list[Level] = []
        self.trunk: list[int] = []
        """First candidates; those of a draft that was sent stay, for they may be in KV."""

    @property
    def node(self) -> int:
        """The draft's row that the next level belongs to: 0 = root, i + 1 = token i."""
        above = sum(len(level.token_ids) for level in self.levels[:-1])
        return above + 1 if self.levels else 0

    def add(self, level: Level) -> None:
        """One level more; its first candidate continues the trunk."""
        self.levels.append(level)
        self.trunk.append(level.token_ids[0])

    def take(self, depth: int, proposal: Proposal) -> DraftTree:
        """The first `depth` levels as a draft, level by level; the comb is empty then."""
        levels, self.levels = self.levels[:depth], []
        parents: list[int] = []
        trunk = -1
        for level in levels:
            first = len(parents)
            parents += [trunk] * len(level.token_ids)
            trunk = first
        branches = len(parents) > len(levels)
        return DraftTree(
            tuple(token for level in levels for token in level.token_ids),
            tuple(parents) if branches else None,
            tuple(level.q for level in levels if level.q is not None) or None,
            proposal,
            without_replacement=branches and proposal is Proposal.SAMPLED,
        )

    def rewind(self, length: int) -> None:
        """The text is only its first `length` tokens again."""
        if length < self.root:
            self.stand_before(length)

    def stand_before(self, root: int) -> None:
        """Nothing is drafted in front of a text of `root` tokens."""
        self.root, self.levels, self.trunk = root, [], []

    def follow(self, text: Sequence[int], draft_key: int) -> int:
        """Stand in front of `text`; how many leading tokens of KV are right for it."""
        if self.levels and (len(text), draft_key) == (self.root, self.draft_key):
            return len(text) + len(self.trunk)
        same = common_prefix(text, self.trunk, self.root)
        right = self.root + same
        goes_on = self._advances and right == len(text)
        kept = self.levels[same:] if goes_on else []
        self.trunk = self.trunk[same:] if kept else []
        self.levels, self.root, self.draft_key = kept, len(text), draft_key
        return right + len(self.trunk)
