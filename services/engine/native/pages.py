"""The memory of all sessions' K/V: pages of 64 tokens in a few large tensors.

A session holds a table of pages, taken as its text grows; so nothing is copied when it
grows, and one call gathers the K/V of many sessions (paged attention, Kwon et al.,
2309.06180). Pages lie in extents. All of a session are of one extent; an extent without
any is let go of, unless it is the last.

A page is set to zero when it is taken: attention reads whole pages and gives the rest of
the last one no weight, which holds for finite numbers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.contract.errors import out_of_memory

PAGE = 64
"""Tokens of a page."""
_EXTENT_BYTES = 256 << 20
_MOST_PAGES = 4096
_FREE, _TAKEN, _KEPT = range(3)
"""States of a page. A kept one is free, but not the first to be taken by others."""

Places = NDArray[np.int64]


def pages_of(tokens: int) -> int:
    """Pages that so many tokens take."""
    return -(-tokens // PAGE)


class Extent:
    """K and V of all layers in `count` pages, [layers, kv_heads, pages, PAGE, head_dim] each."""

    def __init__(self, layers: int, count: int, key: Tensor, value: Tensor) -> None:
        """For tensors shaped as one layer's K and V, [1, kv_heads, n, head_dim]."""
        self.count = count
        self.both: Tensor | None = None
        """K's heads and behind them V's in one tensor, where they are alike."""
        heads, room = key.shape[1], (count, PAGE)
        if key.shape == value.shape:
            self.both = key.new_empty((layers, 2 * heads, *room, key.shape[3]))
            self.keys, self.values = self.both[:, :heads], self.both[:, heads:]
        else:
            self.keys, self.values = (
                like.new_empty((layers, like.shape[1], *room, like.shape[3]))
                for like in (key, value)
            )
        self._state = bytearray(count)

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return self.count - self._state.count(_TAKEN)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V over all layers."""
        return sum(t.nbytes // (self.count * PAGE) for t in (self.keys, self.values))

    @property
    def whole(self) -> tuple[Tensor, Tensor]:
        """K and V by place, [layers, kv_heads, places, head_dim]."""
        return self.keys.flatten(2, 3), self.values.flatten(2, 3)

    def take(self, count: int, behind: int, spread: int) -> list[int]:
        """So many pages of those that are free, set to zero.

        In one run, if there is one: behind the page `behind`; else where `spread` pages are
        free, of which those left over are kept for whoever has these, while there are others.
        """
        pages = self._find(count, behind, max(count, spread))
        index = torch.tensor(pages, device=self.keys.device)
        for tensor in (self.keys, self.values):
            tensor.index_fill_(2, index, 0)
        for page in pages:
            self._state[page] = _TAKEN
        return pages

    def give(self, pages: Sequence[int]) -> None:
        """These pages are free again, and those that were kept behind them."""
        for page in pages:
            self._state[page] = _FREE
        kept = pages[-1] + 1
        while kept < self.count and self._state[kept] == _KEPT:
            self._state[kept] = _FREE
            kept += 1
        if self.free == self.count:
            # Some were kept for somebody whose pages came to lie elsewhere.
            self._state = bytearray(self.count)

    def _find(self, count: int, behind: int, spread: int) -> list[int]:
        if behind + count <= self.count and _TAKEN not in self._state[behind : behind + count]:
            return list(range(behind, behind + count))
        for run in (spread, count):
            start = self._state.find(bytes(run))
            if start >= 0:
                self._state[start + count : start + run] = bytes([_KEPT] * (run - count))
                return list(range(start, start + count))
        return [page for page, state in enumerate(self._state) if state != _TAKEN][:count]


class Tokens(Protocol):
    """How many tokens of how many layers there may be."""

    layers: int
    capacity: int


class Arena:
    """The extents of an engine."""

    def __init__(self, most: Tokens) -> None:
        self._most = most
        self.extents: list[Extent] = []

    def extent(self, pages: int, key: Tensor, value: Tensor) -> Extent:
        """One with so many free pages; a new one for this K and V if there is none.

        Where the device has no memory for one of the usual size, no larger than it must be.
        """
        for extent in self.extents:
            if extent.free >= pages:
                return extent
        layers = self._most.layers
        token = sum(like.shape[1] * like.shape[3] * like.element_size() for like in (key, value))
        usual = min(_EXTENT_BYTES // (PAGE * token * max(1, layers)), _MOST_PAGES)
        count = max(2 * pages, min(usual, pages_of(self._most.capacity)))
        try:
            made = Extent(layers, count, key, value)
        except Exception as error:
            if not out_of_memory(error):
                raise
            made = Extent(layers, pages, key, value)
        self.extents.append(made)
        return made

    def like(self, extent: Extent, pages: int) -> Extent:
        """One with so many free pages, shaped as this one."""
        return self.extent(pages, extent.keys[:1, :, 0], extent.values[:1, :, 0])

    def give(self, extent: Extent, pages: Sequence[int]) -> None:
        """Take pages back; an extent without any goes, unless it is the last."""
        extent.give(pages)
        if extent.free == extent.count and len(self.extents) > 1:
            self.extents.remove(extent)


class Memory:
    """One session's pages, taken at the first write and as the text grows.

    A cache and what borrows from it hold the same one, so all of them see it grow.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.extent: Extent | None = None
        self.pages: list[int] = []
        self._filled = 0
        """Tokens that may matter to somebody."""

    @property
    def room(self) -> int:
        """Tokens that its pages hold."""
        return PAGE * len(self.pages)

    def reach(self, end: int, most: int, key: Tensor, value: Tensor) -> None:
        """Hold `end` tokens shaped as this K and V; `most`: what may come in all."""
        lacking = pages_of(end) - len(self.pages)
        if lacking > 0:
            if self.extent is None:
                self.extent = self._arena.extent(lacking, key, value)
            elif self.extent.free < lacking:
                old, pages = self.extent, self.pages
                home = self._arena.like(old, len(pages) + lacking)
                self._take_over(home, old, pages, self._filled, most)
                self._arena.give(old, pages)
            behind = self.pages[-1] + 1 if self.pages else self.extent.count
            spread = pages_of(most) - len(self.pages)
            self.pages += self.extent.take(lacking, behind, spread)
        self._filled = max(self._filled, end)

    def places(self, start: int, stop: int) -> Places:
        """Where in the extent the tokens from `start` to `stop` lie, counted in tokens."""
        tokens = np.arange(start, stop)
        return np.asarray(self.pages, np.int64)[tokens // PAGE] * PAGE + tokens % PAGE

    def move(self, base: int, kept: Sequence[int]) -> None:
        """Put the tokens at base + kept[i] to base + i."""
        if self.extent is None or not kept:
            return
        places = torch.from_numpy(self.places(base, base + max(kept) + 1))
        source = places[list(kept)].to(self.extent.keys.device)
        target = places[: len(kept)].to(self.extent.keys.device)
        whole = self.extent.whole
        # All that takes memory comes first: where it fails, nothing was moved.
        moved = [tensor.index_select(2, source) for tensor in whole]
        try:
            for tensor, rows in zip(whole, moved, strict=True):
                tensor.index_copy_(2, target, rows)
        except Exception as error:
            # Not to be tried again: of K and V one may have been.
            raise RuntimeError("K/V was moved in part") from error

    def copy(self, length: int, most: int) -> Memory:
        """The first `length` tokens, apart from now on; `most`: what may come in all."""
        twin = Memory(self._arena)
        if self.extent is not None and length:
            pages = self.pages[: pages_of(length)]
            home = self._arena.like(self.extent, len(pages))
            twin._take_over(home, self.extent, pages, length, most)
        return twin

    def hand_over(self) -> Memory:
        """All that is here, in another memory; nothing is left."""
        other = Memory(self._arena)
        other.extent, other.pages, other._filled = self.extent, self.pages, self._filled
        self.extent, self.pages = None, []
        return other

    def free(self) -> None:
        """Give the pages back. Calling it again does nothing."""
        if self.extent is not None and self.pages:
            self._arena.give(self.extent, self.pages)
        self.extent, self.pages = None, []

    def __del__(self) -> None:
        self.free()

    def _take_over(
        self, home: Extent, old: Extent, pages: Sequence[int], length: int, most: int
    ) -> None:
        """Hold in `home` a copy of the first `length` tokens that lie in these pages of `old`.

        What it holds now stays as it is where that fails.
        """
        taken = home.take(len(pages), home.count, pages_of(most))
        try:
            _copy_pages(old, pages, home, taken)
            used = length - PAGE * (len(pages) - 1)
            for mine in (home.keys, home.values):
                mine[:, :, taken[-1], used:] = 0
        except BaseException:
            self._arena.give(home, taken)
            raise
        self.extent, self.pages, self._filled = home, taken, length


def _copy_pages(old: Extent, pages: Sequence[int], home: Extent, taken: Sequence[int]) -> None:
    device = home.keys.device
    source, target = (torch.tensor(ids, device=device) for ids in (pages, taken))
    for theirs, mine in ((old.keys, home.keys), (old.values, home.values)):
        mine.index_copy_(2, target, theirs.index_select(2, source))
