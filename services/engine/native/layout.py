"""One packed step: which rows of the batch belong to which session, and what they see.

Everything that is the same for all layers (positions, masks) is worked out here
once a step; the attention of each layer only looks it up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from services.contract.types import is_chain, node_depths
from services.engine.native.attending import Scoring
from services.engine.native.kv import KVCache
from services.engine.native.pages import Memory
from services.engine.native.paging import Paging


@dataclass(frozen=True, slots=True)
class Segment:
    """New tokens of one session for one forward.

    `parents`: None for a chain; else, in topological order, the index of each
    token's parent in the tree that starts at `base`, -1 for one that follows the
    text before it. `base`: a length of the cache; None is its length now. What the
    cache holds from `base` on are the first nodes of that tree, which so may grow
    segment by segment. Rows `token_ids[logits_from:]` get logits.
    """

    cache: KVCache
    token_ids: Sequence[int]
    parents: Sequence[int] | None = None
    logits_from: int = 0
    base: int | None = None


class Piece:
    """One segment's place in the packed row, and what its rows see."""

    def __init__(self, segment: Segment, first_row: int, skipped: frozenset[int]) -> None:
        """Check the segment; raises ValueError when its cache cannot take it."""
        self.row = first_row
        self.count = len(segment.token_ids)
        _check_tokens(segment, self.count, skipped)
        self.cache = segment.cache
        self.past = segment.cache.length
        self.base = self.past if segment.base is None else segment.base
        self.parents = _tree_parents(segment, self.base)
        """Of all nodes from `base` on; None when they form a chain."""
        self.logits_from = segment.logits_from

    @property
    def positions(self) -> list[int]:
        """Position of each token in its session's text: what lies before it on its path."""
        return self._places()[-self.count :]

    @property
    def chained(self) -> bool:
        """Whether every place in the cache is a position in the text."""
        return self.parents is None

    def first_seen(self, row: int, window: int) -> int:
        """The first key that any of the rows from `row` on may see in a sliding window."""
        start = self.past + row if self.parents is None else self.base
        return max(0, start + 1 - window)

    def reach(self, key: Tensor, value: Tensor) -> Memory:
        """The cache's memory, with room for these rows."""
        return self.cache.reach(self.past + self.count, key, value)

    def visible(self, window: int | None) -> Tensor:
        """Bool [n, past + n]: the past, ancestors and the token itself, within the window."""
        keys = torch.cat((torch.arange(self.base), torch.tensor(self._places())))[None, :]
        rows = keys[0, -self.count :, None]
        visible = keys <= rows
        if self.parents is not None:
            visible[:, self.base :] = _ancestors(self.parents)[-self.count :]
        return visible if window is None else visible & (keys > rows - window)

    def _places(self) -> list[int]:
        """Position of every token from `base` on."""
        if self.parents is None:
            return list(range(self.base, self.past + self.count))
        return [self.base + depth for depth in node_depths(self.parents)]


def _check_tokens(segment: Segment, count: int, skipped: frozenset[int]) -> None:
    if count == 0:
        raise ValueError("a segment needs at least one token")
    if not 0 <= segment.logits_from <= count:
        raise ValueError(f"logits_from {segment.logits_from} is not within 0..{count}")
    if segment.base is not None and segment.parents is None:
        raise ValueError("a tree that grows needs the parents of its new nodes")
    segment.cache.check_append(count, segment.base, skipped)


def _tree_parents(segment: Segment, base: int) -> tuple[int, ...] | None:
    """The parents of all nodes from `base` on; None when they form a chain."""
    parents, count = segment.parents, len(segment.token_ids)
    if parents is None:
        return None
    if len(parents) != count:
        raise ValueError(f"{len(parents)} parents for {count} tokens")
    known = segment.cache.tree_at(base)
    if any(not -1 <= parent < index for index, parent in enumerate(parents, len(known))):
        raise ValueError("parents must come before their children")
    whole = (*known, *parents)
    return None if is_chain(whole) else whole


def _ancestors(parents: tuple[int, ...]) -> Tensor:
    """Bool [n, n]: row i sees column j when j is i or an ancestor of it."""
    seen = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] = seen[parent]
        seen[node, node] = True
    return seen


class Layout:
    """All segments of one forward, packed into one row of tokens."""

    def __init__(self, segments: Sequence[Segment], skipped: frozenset[int] = frozenset()) -> None:
        """Check and place the segments; raises ValueError before anything is changed.

        `skipped`: layers whose attention is left out, and which so keep no K/V.
        """
        if len({id(segment.cache) for segment in segments}) < len(segments):
            raise ValueError("two segments of one forward share a cache")
        self.skipped = skipped
        starts = accumulate((len(segment.token_ids) for segment in segments), initial=0)
        self.pieces = [Piece(*pair, skipped) for pair in zip(segments, starts, strict=False)]
        self.token_ids = [token for segment in segments for token in segment.token_ids]
        self.positions = [position for piece in self.pieces for position in piece.positions]
        self._paging: Paging | None = None
        self._written = 0

    @property
    def logit_rows(self) -> list[int]:
        """Rows of the packed batch whose logits are wanted, in order."""
        return [
            row
            for piece in self.pieces
            for row in range(piece.row + piece.logits_from, piece.row + piece.count)
        ]

    @property
    def logit_counts(self) -> list[int]:
        """Wanted rows per segment."""
        return [piece.count - piece.logits_from for piece in self.pieces]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        """Store a layer's K/V and attend to it; see `ragged_attention` for the shapes."""
        if layer in self.skipped:
            raise RuntimeError(f"layer {layer} was to be skipped, and keeps K/V")
        if self._paging is None:
            self._paging = Paging(self.pieces, key, value)
        self._paging.write(layer, key, value)
        self._written += 1
        return self._paging.attend(layer, query, scoring)

    def commit(self, layers: int | None = None) -> None:
        """Make the new K/V valid in every cache, once the forward has succeeded.

        RuntimeError unless each of `layers` that was not skipped kept its K/V once.
        """
        if layers is not None and self._written != layers - len(self.skipped):
            expected = layers - len(self.skipped)
            raise RuntimeError(f"{self._written} of {expected} layers kept K/V")
        for piece in self.pieces:
            piece.cache.commit(piece.count, piece.base, piece.parents, self.skipped)
