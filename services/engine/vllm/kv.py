"""A sequence in blocks: its tokens, and of how many of them there is K/V.

K/V is a chain of positions. Of an open tree the blocks hold one path, and what a kept path has
beyond it is owed: the next pass feeds it again, a few rows more. So rolling back is a length
change, a tree needs no memory of its own once it is computed, and whatever fails on the way
leaves nothing to repair.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Self

from services.engine.budgeted import BudgetedCache, Placed
from services.engine.vllm.blocks import Blocks


class BlockCache(BudgetedCache):
    """K/V of one session, or of a branch of it."""

    _budget: Blocks

    def __init__(self, budget: Blocks, reserve: int) -> None:
        """Take `reserve` tokens of the budget; raises Overloaded without room."""
        super().__init__(budget, reserve)
        try:
            budget.open_table()
        except BaseException:
            budget.give(reserve)
            raise
        self.tokens: list[int] = []
        self.table: list[int] = []
        self.filled = 0
        """Positions from the start on that hold the K/V of the tokens with their numbers."""
        self.branch: list[int] = []
        """The tokens, by number, whose K/V lies at the positions after those."""

    # --- what it holds --------------------------------------------------------

    def matching(self, base: int, path: Sequence[int]) -> int:
        """Up to which position there is K/V of a text; `path`: its tokens, by number, from `base`.

        Before `base` every token stands at its number.
        """
        if self.filled < base:
            return self.filled
        held = [*range(base, self.filled), *self.branch]
        pairs = zip(held, path, strict=False)
        return base + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def keep_only(self, position: int) -> None:
        """What lies from `position` on is about to be written over."""
        del self.branch[max(0, position - self.filled) :]
        self.filled = min(self.filled, position)

    def wrote(self, placed: Placed[Self], tokens: Sequence[int], held: Sequence[int]) -> None:
        """Append a segment's tokens; `held`: by number, whose K/V follows that of `filled`."""
        self.tokens += tokens
        self.branch = list(held)
        self.commit(placed.count, placed.base, placed.parents)
        self._settle()

    def _settle(self) -> None:
        """Count what lies where its own number says as filled."""
        count = 0
        while count < len(self.branch) and self.branch[count] == self.filled + count:
            count += 1
        self.filled += count
        del self.branch[:count]

    # --- as `BudgetedCache` asks --------------------------------------------------

    def _copy(self, other: BlockCache, length: int) -> None:
        self.tokens = other.tokens[:length]
        self.filled, self.branch = other.filled, list(other.branch)
        self._forget_from(length)
        held = self._budget.blocks_of(self.filled + len(self.branch))
        self.table = [self._budget.share(block) for block in other.table[:held]]

    def _keep(self, base: int, kept: Sequence[int]) -> None:
        where = {base + node: base + place for place, node in enumerate(kept)}
        filled, held = min(self.filled, base), [*range(base, self.filled), *self.branch]
        super()._keep(base, kept)
        self.filled = filled
        self.branch = [where[number] for number in takewhile(where.__contains__, held)]
        self._settle()

    def _move(self, base: int, kept: Sequence[int]) -> None:
        self.tokens[base:] = [self.tokens[base + node] for node in kept]

    def _shorten(self, length: int) -> None:
        del self.tokens[length:]
        self._forget_from(length)
        super()._shorten(length)

    def _forget_from(self, number: int) -> None:
        """Of the token with this number, and what follows, there is no K/V."""
        self.branch = list(takewhile(lambda held: held < number, self.branch))
        if number < self.filled:
            self.filled, self.branch = number, []

    def _hand_over(self, parked: Self) -> int:
        self._budget.tables += 1
        self._drop_blocks(self._budget.blocks_of(self.filled))
        parked.tokens, self.tokens = self.tokens, []
        parked.table, self.table = self.table, []
        parked.branch, self.branch = [], []
        return max(self._length, len(parked.table) * self._budget.size)

    def _drop(self) -> None:
        self._drop_blocks(0)
        self.tokens, self.branch, self.filled = [], [], 0
        self._budget.close_table()

    def _drop_blocks(self, keep: int) -> None:
        while len(self.table) > keep:
            self._budget.give_block(self.table.pop())
