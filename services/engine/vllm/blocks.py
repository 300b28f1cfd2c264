"""Blocks of K/V memory: which are free, and how many sequences hold each."""

from __future__ import annotations

from services.contract.errors import Overloaded
from services.engine.budgeted import KVBudget

NULL = 0
"""The block that vLLM keeps for padding."""

MOST_TABLES = 1024
"""Sequences at a time. Each may leave the last of its blocks in part empty."""

SHARE_OF_TABLES, SHARE_OF_FORKS = 8, 16


class Blocks(KVBudget):
    """A pool of `count` blocks of `size` tokens, and the budget of tokens that it can promise.

    What caches promise always fits: a part of the blocks is set aside for the last block of
    each sequence, which may be half empty, and another for the branches of trees, which are
    held for one pass.
    """

    def __init__(self, count: int, size: int) -> None:
        self.size = size
        self.most_tables, self.for_forks = _set_aside(count)
        super().__init__(self.capacity_of(count, size))
        self.tables = 0
        self._free = list(range(count - 1, NULL, -1))
        self._holders = [0] * count

    @staticmethod
    def capacity_of(count: int, size: int) -> int:
        """How many tokens so many blocks can promise."""
        return max(0, count - 1 - sum(_set_aside(count))) * size

    @classmethod
    def holding(cls, tokens: int, size: int) -> int:
        """How many blocks it takes to promise so many tokens."""
        count = -(-tokens // size) + 1
        while cls.capacity_of(count, size) < tokens:
            count += max(1, -(-(tokens - cls.capacity_of(count, size)) // size))
        return count

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def open_table(self) -> None:
        """One more sequence; raises Overloaded where there are too many."""
        if self.tables >= self.most_tables and self.reclaim is not None and self.spare:
            self.reclaim(1)
        if self.tables >= self.most_tables:
            raise Overloaded(f"KV cache: {self.tables} texts are open, the most that there may be")
        self.tables += 1

    def close_table(self) -> None:
        """One fewer."""
        self.tables -= 1

    def blocks_of(self, tokens: int) -> int:
        """How many blocks hold so many tokens."""
        return -(-tokens // self.size)

    def take_block(self) -> int:
        """A free block, held once."""
        block = self._free.pop()
        self._holders[block] = 1
        return block

    def share(self, block: int) -> int:
        """The same block, held once more."""
        self._holders[block] += 1
        return block

    def is_shared(self, block: int) -> bool:
        """Whether several hold it, so that nobody may write into it."""
        return self._holders[block] > 1

    def give_block(self, block: int) -> None:
        """Held once less."""
        self._holders[block] -= 1
        if not self._holders[block]:
            self._free.append(block)

    def own(self, table: list[int], start: int, end: int) -> tuple[int, int] | None:
        """Make positions `start` to `end` of a table its own.

        The block to copy first, source and target, where some of it lies before `start`.
        """
        first, last = start // self.size, self.blocks_of(end)
        copied = None
        for i in range(first, min(last, len(table))):
            if self.is_shared(shared := table[i]):
                table[i] = self.take_block()
                if i == first and start % self.size:
                    copied = shared, table[i]
                self.give_block(shared)
        table += [self.take_block() for _ in range(last - len(table))]
        return copied


def _set_aside(count: int) -> tuple[int, int]:
    """Of so many blocks, those for the ends of sequences and those for branches."""
    return max(1, min(MOST_TABLES, count // SHARE_OF_TABLES)), count // SHARE_OF_FORKS
