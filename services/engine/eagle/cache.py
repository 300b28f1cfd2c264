"""The K/V of a sequence under a head, and the features that its next rows need.

The first rows of a text may be void: nothing was known before them. They take a place in the
length and none in memory. Which rows took the target's states and which the head's own is
remembered, a byte each; of features only those of the last few rows, and those not yet fed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Self

import torch
from torch import Tensor

from services.engine.native.kv import PagedBudget, PagedCache
from services.engine.native.pages import Memory

KEPT = 64
"""Rows at the end of a text whose features are kept, for rollbacks and trees."""
VOID, TARGET, OWN = range(3)
"""Where a row's feature is from."""
Features = dict[int, Tensor]
"""[width] each, by position or place."""


class Fuse:
    """What turns the target's states into features, and how wide these states are."""

    def __init__(self, compute: Callable[[Tensor], Tensor], width: int) -> None:
        self.width, self._compute = width, compute

    @torch.inference_mode()
    def __call__(self, states: bytes | Tensor) -> Tensor:
        """Features [n, d]; ValueError for states that are no rows, or not finite."""
        rows = self._rows(states)
        features = self._compute(rows) if len(rows) else rows
        if not bool(torch.isfinite(features).all()):
            raise ValueError("states are not finite")
        return features

    def _rows(self, states: bytes | Tensor) -> Tensor:
        if isinstance(states, Tensor):
            if states.dim() != 2 or states.shape[1] != self.width:
                raise ValueError(f"states are {list(states.shape)}, not [n, {self.width}]")
            if not states.is_floating_point():
                raise ValueError(f"states are {states.dtype}")
            return states
        if len(states) % (2 * self.width):
            raise ValueError(f"{len(states)} bytes are no rows of {self.width} bfloat16")
        if not states:
            return torch.empty(0, self.width)
        return torch.frombuffer(bytearray(states), dtype=torch.bfloat16).view(-1, self.width)


class EagleCache(PagedCache):
    """K/V of one session, or of one branch of it. Row j takes the feature of position j - 1."""

    def __init__(self, budget: PagedBudget, reserve: int, fuse: Fuse) -> None:
        """Take `reserve` tokens of the budget; raises Overloaded without room."""
        self._fuse = fuse
        super().__init__(budget, reserve)

    def _hold(self, memory: Memory) -> None:
        super()._hold(memory)
        self.void = 0
        """Rows at the beginning that are not in memory."""
        self.known: Features = {}
        """The target's, by position of the text."""
        self.outputs: Features = {}
        """The head's own, by place."""
        self.anchored = 0
        """Positions before it have the target's states, but for those that were never told."""
        self._origins = bytearray()

    # --- the target's states ----------------------------------------------------

    def anchor(self, start: int, states: bytes | Tensor) -> None:
        """The target's states of the text's tokens from `start` on, [n, width] in bfloat16.

        Changes no K/V. What is known already stays. Raises ValueError for states of another
        size, or beyond what may be held.
        """
        if self.freed:
            raise ValueError("the cache was freed")
        features = self._fuse(states)
        if start < 0 or start + len(features) > self.reserve:
            raise ValueError(
                f"states of {len(features)} tokens from {start} on; {self.reserve} are reserved"
            )
        known = {
            position: row
            for position, row in enumerate(rows_of(features), start)
            if self._matters(position)
        }
        self.known = known | self.known
        self.anchored = max(self.anchored, start + len(features))

    @property
    def stale(self) -> bool:
        """Whether `refresh` drops rows."""
        return any(True for _ in self._late_rows())

    def _late_rows(self) -> Iterator[int]:
        """Rows that lack a feature of the target's known now."""
        rows = (position + 1 for position in self.known if position + 1 < self._length)
        return (row for row in rows if self._origins[row] != TARGET)

    def _matters(self, position: int) -> bool:
        """Whether what is known of a position may be read once more."""
        row = position + 1
        return row >= self._length - KEPT or self._origins[row] != TARGET

    def refresh(self) -> int:
        """Drop the rows from the first on that lacks a feature of the target's known now.

        The new length. Raises ValueError while a tree is open.
        """
        if self._tree is not None:
            raise ValueError("a tree is still unresolved: keep a path of it or roll back first")
        first = min(self._late_rows(), default=self._length)
        self.rollback(first)
        return first

    def forget(self, length: int) -> None:
        """The target's states of tokens from `length` on were of another text."""
        self.known = {p: row for p, row in self.known.items() if p < length}
        self.anchored = min(self.anchored, length)

    def drafts(self, length: int) -> bool:
        """Whether a token fed at position `length` - 1 of the text has a feature to go with it."""
        row, end = length - 1, self._length if self._tree is None else self._tree[0]
        if row < 1:
            return False
        if row < end:
            return self._origins[row] != VOID
        return end - 1 in self.outputs or any(p in self.known for p in range(max(0, end - 1), row))

    # --- what a forward asks and tells ----------------------------------------------

    def origins(self, base: int) -> bytearray:
        """Where the features of the rows from `base` on are from."""
        return self._origins[base:]

    @property
    def memory(self) -> Memory:
        """Of the rows that are not void."""
        return self._memory

    def fresh_memory(self) -> Memory:
        """For a text of which nothing in memory is of use any more."""
        return Memory(self._budget.arena)

    def absorb(self, memory: Memory, void: int, origins: bytearray, outputs: Features) -> None:
        """What a forward made of new rows, just before they are committed."""
        if memory is not self._memory:
            old, self._memory = self._memory, memory
            old.free()
        self.void = void
        self._origins += origins
        self.outputs |= outputs

    def commit(
        self,
        count: int,
        base: int,
        parents: tuple[int, ...] | None,
        skipped: frozenset[int] = frozenset(),
    ) -> None:
        """Make the `count` tokens just written valid, and forget features that are too old."""
        super().commit(count, base, parents, skipped)
        first = self.first_kept(self._length)
        self.known = {p: row for p, row in self.known.items() if p >= first}
        self.outputs = {p: row for p, row in self.outputs.items() if p >= first}

    def first_kept(self, length: int) -> int:
        """The first place whose feature is kept in a text of so many tokens."""
        kept = length - KEPT
        return kept if self._tree is None else min(kept, self._tree[0] - 1)

    # --- length and tree ------------------------------------------------------------

    def rollback(self, length: int) -> None:
        """Forget every token from `length` on. A tree is kept whole or cut to a chain.

        What is known of the target's states stays.
        """
        if self._tree is not None and self._tree[0] < length < self._length:
            base, parents = self._tree
            if list(parents[: length - base]) == list(range(-1, length - base - 1)):
                self._keep(base, range(length - base))
                self._tree = None
                return
        super().rollback(length)

    def _keep(self, base: int, kept: Sequence[int]) -> None:
        """Keep some nodes from `base` on; those void at the beginning leave memory."""
        origins = self._origins[base:]
        lead = 0
        while self.void >= base and lead < len(kept) and origins[kept[lead]] == VOID:
            lead += 1
        void = base + lead if self.void >= base else self.void
        places = [base + node - self.void for node in kept[lead:]]
        self._move_places(base + lead - void, places)
        self.void = void
        self.outputs = self._moved(base, kept)
        self._origins[base:] = bytes(origins[node] for node in kept)
        self._shorten(base + len(kept))

    @torch.inference_mode()
    def _move_places(self, target: int, places: Sequence[int]) -> None:
        """Put what lies at these places of memory to `target` and on."""
        if places and places != list(range(target, target + len(places))):
            self._memory.move(target, [place - target for place in places])

    def _moved(self, base: int, kept: Sequence[int]) -> Features:
        before = {place: row for place, row in self.outputs.items() if place < base}
        for place, node in enumerate(kept, base):
            if base + node in self.outputs:
                before[place] = self.outputs[base + node]
        return before

    def _shorten(self, length: int) -> None:
        super()._shorten(length)
        self.void = min(self.void, length)
        del self._origins[length:]
        if self.outputs and max(self.outputs) >= length:
            self.outputs = {p: row for p, row in self.outputs.items() if p < length}

    # --- other sequences --------------------------------------------------------------

    @torch.inference_mode()
    def _copy(self, other: EagleCache, length: int) -> None:  # type: ignore[override]
        void = min(other.void, length)
        self._memory = other._memory.copy(length - void, self._reserve)
        self.void = void
        self._origins = other._origins[:length]
        self.known, self.anchored = dict(other.known), other.anchored
        self.outputs = {p: row for p, row in other.outputs.items() if p < length}

    def copy_prefix(self, other: Self, length: int) -> None:
        """Begin with the K/V of another text's first `length` tokens; this one is empty yet.

        What is known of this text's states stays. Raises ValueError where there is something, or
        the other one has no such chain.
        """
        own, anchored = self.known, self.anchored
        super().copy_prefix(other, length)
        self._settle(length)
        self.known, self.anchored = own, max(anchored, min(self.anchored, length))

    def _settle(self, length: int) -> None:
        """What is known of `length` tokens goes with these; texts may differ from there on."""
        self.outputs |= {p: row for p, row in self.known.items() if p < length}
        self.known = {}

    def _hand_over(self, parked: Self) -> int:
        void = self.void
        parked.outputs = dict(self.outputs)
        parked._settle(self._length)
        parked._memory = self._memory.hand_over()
        return void + parked._memory.room if parked._memory.room else self._length

    def _sibling(self, reserve: int) -> EagleCache:
        return EagleCache(self._budget, reserve, self._fuse)


def rows_of(block: Tensor) -> list[Tensor]:
    """The rows of [n, d], in blocks so small that one of them keeps little memory."""
    if len(block) <= KEPT:
        return list(block.unbind(0))
    parts = [block[start : start + KEPT].clone() for start in range(0, len(block), KEPT)]
    return [row for part in parts for row in part.unbind(0)]
