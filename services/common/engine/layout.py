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

from services.common.engine.kv import KVCache
from services.common.types import is_chain, node_depths


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
    """One segment's place in the packed row, and its masks."""

    def __init__(self, segment: Segment, first_row: int, skipped: frozenset[int]) -> None:
        """Check the segment; raises ValueError when its cache cannot take it."""
        self.row = first_row
        self.count = len(segment.token_ids)
        _check_tokens(segment, self.count, skipped)
        self.past = segment.cache.length
        self.base = self.past if segment.base is None else segment.base
        self.append = segment.cache.append(self.count, skipped)
        self.parents = _tree_parents(segment, self.base)
        """Of all nodes from `base` on; None when they form a chain."""
        self.logits_from = segment.logits_from
        self._views: dict[tuple[int | None, int], tuple[int, Tensor | None]] = {}

    @property
    def positions(self) -> list[int]:
        """Position of each token in its session's text: what lies before it on its path."""
        return self._places()[-self.count :]

    @property
    def sees_all(self) -> bool:
        """One token that follows everything in its cache."""
        return self.count == 1 and self.parents is None

    @property
    def starts_text(self) -> bool:
        """A chain on an empty cache: plain causal attention."""
        return self.past == 0 and self.parents is None

    def view(self, window: int | None, groups: int, like: Tensor) -> tuple[int, Tensor | None]:
        """What these rows see: (first key, additive mask or None for "all of them").

        The mask is [1, 1, groups * n, keys], the rows repeated for each of the
        `groups` query heads that share a K/V head.
        """
        key = (window, groups)
        if key not in self._views:
            self._views[key] = self._make_view(window, groups, like)
        return self._views[key]

    def _make_view(
        self, window: int | None, groups: int, like: Tensor
    ) -> tuple[int, Tensor | None]:
        # A place in the cache is a position up to `base` only.
        start = self.past if self.parents is None else self.base
        first = max(0, start + 1 - window) if window is not None else 0
        if self.sees_all:
            return first, None
        visible = self._visible(window)[:, first:]
        mask = torch.zeros(visible.shape, dtype=like.dtype).masked_fill_(~visible, -torch.inf)
        return first, mask.repeat(groups, 1)[None, None].to(like.device)

    def _visible(self, window: int | None) -> Tensor:
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
        starts = accumulate((len(segment.token_ids) for segment in segments), initial=0)
        self.pieces = [Piece(*pair, skipped) for pair in zip(segments, starts, strict=False)]
        self.counts = [piece.count for piece in self.pieces]
        self.single = all(piece.sees_all for piece in self.pieces)
        self.token_ids = [token for segment in segments for token in segment.token_ids]
        self.positions = [position for piece in self.pieces for position in piece.positions]

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

    def commit(self) -> None:
        """Make the new K/V valid in every cache, once the forward has succeeded."""
        for piece in self.pieces:
            piece.append.commit(piece.base, piece.parents)
