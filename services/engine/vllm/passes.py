"""From segments to passes of the model: chains as they are, a tree as one chain for each leaf.

The first chain of a segment is written into the sequence's own blocks. The others of a tree
take forks: whole blocks before them are shared, the one that they begin in is copied, the rest
is given back after the pass. Where there is no room for a fork, its chain is written over the
one before it in the sequence's own blocks, in a pass of its own. No attention backend of vLLM
computes trees since May 2026.

A pass holds no more tokens and sequences than the model was loaded for; a longer chain goes on in
the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from services.engine.budgeted import Placed
from services.engine.port import Segment
from services.engine.vllm.blocks import Blocks
from services.engine.vllm.kv import BlockCache

NOWHERE = -1
"""The slot of what is written nowhere."""

Row = tuple[int, int]
"""A row of logits: the segment, and which of its new tokens."""


@dataclass(slots=True)
class Chain:
    """Tokens of one sequence to feed one after the other, from position `start` on.

    `numbers`: those of the `tokens` in the sequence's text, nodes of its tree counted. `rows`: the
    row of each, None where neither logits nor states are wanted of it, or another chain has it.
    """

    work: Work
    start: int
    numbers: list[int]
    tokens: Sequence[int]
    rows: list[Row | None]
    table: list[int] | None = None
    """Of a fork; None: the sequence's own."""
    fed: int = 0

    @property
    def blocks(self) -> list[int]:
        """The block table that it is written by."""
        return self.work.placed.cache.table if self.table is None else self.table

    @property
    def left(self) -> int:
        """Tokens that no pass has taken yet."""
        return len(self.numbers) - self.fed

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.start + len(self.numbers)


@dataclass(slots=True)
class Work:
    """A segment, where it goes, and what its sequence's blocks hold at the end."""

    segment: Segment
    placed: Placed[BlockCache]
    watched: bool = False
    chains: list[Chain] = field(default_factory=list)
    held: list[int] = field(default_factory=list)

    @property
    def first(self) -> int:
        """The number of the first token that has a row: of logits, or of states."""
        return self.placed.past + (0 if self.watched else self.segment.logits_from)

    def token(self, number: int) -> int:
        """A token by its number, a new one too."""
        past = self.placed.past
        cache = self.placed.cache
        return cache.tokens[number] if number < past else self.segment.token_ids[number - past]


@dataclass(frozen=True, slots=True)
class Pass:
    """What the model computes at once: some of each chain's tokens, one chain after the other.

    `positions`, `slots`: of each of the `ids`, in its text and in the memory of K/V. `starts`
    [s + 1]: where each chain begins among the ids; `ends` [s]: its position after them; `tables`
    [s, w]; `wanted`: which of the ids get logits, those of `rows`; `watched`: of which the layers'
    states are kept, those of `states`; `copies` [c, 2]: blocks that are copied before, source and
    target. `longest`: the most tokens of a chain.
    """

    ids: NDArray[np.int32]
    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    tables: NDArray[np.int32]
    wanted: NDArray[np.int64]
    watched: NDArray[np.int64]
    copies: list[tuple[int, int]]
    rows: list[Row]
    states: list[Row]
    longest: int

    def padded(self, tokens: int, sequences: int | None) -> Pass:
        """The same for a captured graph of so many tokens and sequences (None: those it has).

        What is added is of no sequence, or of empty ones, and its K/V goes nowhere.
        """
        more = tokens - len(self.ids)
        empty = 0 if sequences is None else sequences - len(self.ends)
        return replace(
            self,
            ids=np.pad(self.ids, (0, more)),
            positions=np.pad(self.positions, (0, more)),
            slots=np.pad(self.slots, (0, more), constant_values=NOWHERE),
            starts=np.pad(self.starts, (0, empty), mode="edge"),
            ends=np.pad(self.ends, (0, empty)),
            tables=np.pad(self.tables, ((0, empty), (0, 0))),
        )


def works_of(
    pairs: Iterator[tuple[Segment, Placed[BlockCache]]], *, watched: bool = False
) -> list[Work]:
    """What each segment needs fed: what its sequence owes, then its own tokens.

    `watched`: of all of these the states are asked for, too.
    """
    works = []
    for index, (segment, placed) in enumerate(pairs):
        work = Work(segment, placed, watched)
        work.chains = _chain(work, index) if placed.parents is None else _chains(work, index)
        works.append(work)
    return works


def _chain(work: Work, index: int) -> list[Chain]:
    placed, start = work.placed, work.placed.cache.filled
    numbers = list(range(start, placed.past + placed.count))
    rows = [(index, number - placed.past) if number >= work.first else None for number in numbers]
    tokens = [*placed.cache.tokens[start:], *work.segment.token_ids]
    return [Chain(work, start, numbers, tokens, rows)]


def _chains(work: Work, index: int) -> list[Chain]:
    """One for each new leaf, what is held of most of them first; each row once."""
    placed, cache = work.placed, work.placed.cache
    base = placed.base
    paths = sorted(placed.ways, key=lambda path: cache.matching(base, path), reverse=True)
    seen, chains = set[int](), []
    for path in paths:
        start = cache.matching(base, path)
        numbers = [*range(start, base), *path[max(0, start - base) :]]
        wanted = [number >= work.first and number not in seen for number in numbers]
        rows = [
            (index, number - placed.past) if new else None
            for number, new in zip(numbers, wanted, strict=True)
        ]
        seen.update(numbers)
        chains.append(Chain(work, start, numbers, list(map(work.token, numbers)), rows))
    return chains


class Passes:
    """The passes of one forward, each made when the one before it is over."""

    def __init__(self, works: Sequence[Work], blocks: Blocks, tokens: int, sequences: int) -> None:
        """`tokens`, `sequences`: the most of a pass."""
        self._waiting = [chain for work in works for chain in work.chains]
        self._blocks = blocks
        self._tokens, self._sequences = tokens, sequences
        self._fork_blocks = 0
        self._copied: list[tuple[BlockCache, int]] = []
        """Whose block is a new one in this pass, and from which position on."""

    def __iter__(self) -> Iterator[Pass]:
        """Whoever computes one does so before taking the next."""
        while self._waiting:
            copies: list[tuple[int, int]] = []
            taken = self._take(copies)
            yield _lay_out(taken, copies, self._blocks.size)
            self._copied.clear()
            for chain, count in taken:
                chain.fed += count
            self._end_forks()
            self._waiting = [chain for chain in self._waiting if chain.left]

    def close(self) -> None:
        """Give back what forks hold; after an error, too, when copies may not have been made."""
        for cache, position in self._copied:
            cache.keep_only(position)
        for chain in self._waiting:
            chain.fed = len(chain.numbers)
        self._end_forks()

    def _take(self, copies: list[tuple[int, int]]) -> list[tuple[Chain, int]]:
        """The chains of the next pass, and how many tokens of each."""
        taken: list[tuple[Chain, int]] = []
        room, busy = self._tokens, set[int]()
        for chain in self._waiting:
            if not room or len(taken) == self._sequences:
                break
            count = min(room, chain.left)
            if not self._place(chain, count, busy, copies):
                continue
            taken.append((chain, count))
            room -= count
        return taken

    def _place(
        self, chain: Chain, count: int, busy: set[int], copies: list[tuple[int, int]]
    ) -> bool:
        """Give a chain blocks for so many tokens more; False where it has to wait."""
        cache, at = chain.work.placed.cache, chain.start + chain.fed
        if chain.table is None and not chain.fed and id(cache) in busy:
            return self._fork(chain, copies)
        if chain.table is None:
            busy.add(id(cache))
            cache.keep_only(at)
            copied = self._blocks.own(cache.table, at, at + count)
            if copied is not None:
                copies.append(copied)
                self._copied.append((cache, at - at % self._blocks.size))
            chain.work.held = [*cache.branch, *chain.numbers[: chain.fed + count]]
        return True

    def _fork(self, chain: Chain, copies: list[tuple[int, int]]) -> bool:
        """Blocks of its own for a chain of a tree; False without room."""
        blocks, table = self._blocks, chain.work.placed.cache.table
        shared = chain.start // blocks.size
        own = blocks.blocks_of(chain.end) - shared
        if self._fork_blocks + own > blocks.for_forks:
            return False
        self._fork_blocks += own
        chain.table = [blocks.share(block) for block in table[:shared]]
        chain.table += [blocks.take_block() for _ in range(own)]
        if chain.start % blocks.size:
            # What is to be copied into the sequence's own block in this pass is not there yet.
            before = {own: source for source, own in copies}
            source = before.get(table[shared], table[shared])
            copies.append((source, chain.table[shared]))
        return True

    def _end_forks(self) -> None:
        for chain in self._waiting:
            if chain.table is not None and not chain.left:
                own = len(chain.table) - chain.start // self._blocks.size
                self._fork_blocks -= own
                for block in chain.table:
                    self._blocks.give_block(block)
                chain.table = None


def _lay_out(taken: Sequence[tuple[Chain, int]], copies: list[tuple[int, int]], size: int) -> Pass:
    """`size`: of a block."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    wanted: list[tuple[int, Row]] = []
    watched: list[tuple[int, Row]] = []
    for chain, count in taken:
        part, work = slice(chain.fed, chain.fed + count), chain.work
        asked = [(at, row) for at, row in enumerate(chain.rows[part], len(ids)) if row is not None]
        wanted += [one for one in asked if one[1][1] >= work.segment.logits_from]
        watched += asked if work.watched else []
        ids += chain.tokens[part]
        at = range(chain.start + chain.fed, chain.start + chain.fed + count)
        positions += at
        slots += slots_of(chain.blocks, at, size)
    counts = [count for _, count in taken]
    return Pass(
        np.array(ids, np.int32),
        np.array(positions, np.int64),
        np.array(slots, np.int64),
        np.array([0, *accumulate(counts)], np.int32),
        np.array([chain.start + chain.fed + count for chain, count in taken], np.int32),
        _padded([chain.blocks for chain, _ in taken]),
        np.array([at for at, _ in wanted], np.int64),
        np.array([at for at, _ in watched], np.int64),
        copies,
        [row for _, row in wanted],
        [row for _, row in watched],
        max(counts),
    )


def slots_of(table: Sequence[int], positions: range, size: int) -> list[int]:
    """Where the K/V of positions goes by a block table; `size`: of a block."""
    return [table[at // size] * size + at % size for at in positions]


def _padded(tables: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    """Block tables [s, w], the null block behind."""
    padded = np.zeros((len(tables), max(map(len, tables))), np.int32)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    return padded
