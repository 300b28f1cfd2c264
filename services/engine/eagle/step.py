"""One step of a head: which rows take which feature, in which pass, and what they see.

A row whose feature is the output of another row of the same step waits for that one: a step is
as many passes as its longest such path. Drafting with trees, and along a text whose states are
known, it is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.engine.budgeted import place
from services.engine.eagle.cache import OWN, TARGET, VOID, EagleCache, Features, rows_of
from services.engine.native.pages import Memory
from services.engine.port import Segment

_NEVER = -1


class Fed:
    """One segment: the feature, the pass and the place of each of its rows."""

    def __init__(self, segment: Segment, soft: range, mask: Tensor | None) -> None:
        """`mask`: the feature of the ids in `soft`. ValueError for what does not fit the cache."""
        placed = place(segment, EagleCache)
        self.cache, self.past, self.count = placed.cache, placed.past, placed.count
        self.base, self.parents = placed.base, placed.parents
        self._places = placed.places
        self.positions = self._places[-self.count :]
        self.token_ids, self.logits_from = segment.token_ids, segment.logits_from
        self.features: list[Tensor | None] = []
        """Of each row; None until its parent was computed."""
        self.passes: list[int] = []
        """In which each row is computed; -1: in none, it is void."""
        self.origins = bytearray()
        for row in range(self.count):
            self._begin(row, soft, mask)
        self.void = self._void()
        self._whole = self.void == self.cache.void or self.void == self.past + self.count
        self.memory = self.cache.memory if self._whole else self.cache.fresh_memory()
        self._seen: NDArray[np.bool_] | None = None
        self.outputs: Features = {}

    def parent(self, row: int) -> int:
        """The place of the row before a row, in the cache; -1 for a text's first one."""
        if self.parents is None:
            return self.past + row - 1
        return self.base + (node if (node := self.parents[self._node(row)]) >= 0 else -1)

    def _node(self, row: int) -> int:
        return self.past - self.base + row

    def _begin(self, row: int, soft: range, mask: Tensor | None) -> None:
        """Find a row's feature, or the pass that gives it."""
        parent = self.parent(row)
        inside = parent - self.past
        waits = self.passes[inside] if inside >= 0 else _NEVER
        feature: Tensor | None
        origin = OWN
        if self.token_ids[row] in soft:
            lives = waits >= 0 if inside >= 0 else parent in self.cache.outputs
            feature = mask if lives or self._known(row) is not None else None
        elif (feature := self._known(row)) is not None:
            origin = TARGET
        elif inside < 0:
            feature = self.cache.outputs.get(parent)
        self.features.append(feature)
        # A row sees those before it, so it is computed with them or after them.
        later = _NEVER if waits < 0 else waits + 1
        number = max(0, waits) if feature is not None else later
        self.passes.append(number)
        self.origins.append(origin if number >= 0 else VOID)

    def _known(self, row: int) -> Tensor | None:
        return self.cache.known.get(self.positions[row] - 1)

    def _void(self) -> int:
        """How many rows of the text are void from its beginning, with this step."""
        if self.passes[0] >= 0 and self.parents is None:
            return self.cache.void
        if self.parents is None:
            lead = next((row for row, one in enumerate(self.passes) if one >= 0), self.count)
            return self.past + lead
        # In a tree a void row has its place in memory, and nobody sees it.
        return max(self.cache.void, self.base) if _NEVER in self.passes else self.cache.void

    def runs(self, number: int) -> Iterator[tuple[int, int]]:
        """The rows of a pass, in runs from a row up to another."""
        start: int | None = None
        for row, one in enumerate(self.passes):
            if one == number and start is None:
                start = row
            elif one != number and start is not None:
                yield start, row
                start = None
        if start is not None:
            yield start, self.count

    def key_positions(self, stop: int) -> NDArray[np.int64]:
        """Of the tokens in memory up to row `stop`, counted from the first one in a text."""
        before, hidden = max(0, self.base - self.void), max(0, self.void - self.base)
        places = np.asarray(self._places[hidden : self.past + stop - self.base], np.int64)
        return np.concatenate((np.arange(before), places - self.void))

    def seen(self, start: int, stop: int) -> NDArray[np.bool_] | None:
        """Bool [stop - start, tokens in memory up to stop]; None where these form a chain."""
        if self.parents is None:
            return None
        if self._seen is None:
            self._seen = self._ancestors()
        end = self.past + stop - self.void
        return self._seen[start:stop, :end]

    def _ancestors(self) -> NDArray[np.bool_]:
        """Of each row all that it sees in memory."""
        assert self.parents is not None
        nodes = len(self.parents)
        seen = np.zeros((nodes, nodes), bool)
        origins = self.cache.origins(self.base) + self.origins
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                seen[node] = seen[parent]
            seen[node, node] = origins[node] != VOID
        before = max(0, self.base - self.void)
        hidden = max(0, self.void - self.base)
        own = seen[self.past - self.base :, hidden:]
        return np.concatenate((np.ones((len(own), before), bool), own), 1)

    def absorb(self) -> None:
        """Make the new rows valid."""
        self.cache.absorb(self.memory, self.void, self.origins, self.outputs)
        self.cache.commit(self.count, self.base, self.parents)


@dataclass(slots=True)
class Run:
    """Neighbouring rows of a segment in a pass, as the paging of K/V asks for them."""

    fed: Fed
    start: int
    stop: int
    row: int
    """The first one's, in the pass."""
    count: int = field(init=False)
    past: int = field(init=False)
    """Tokens in memory before them."""
    seen: NDArray[np.bool_] | None = field(init=False)
    """See `Fed.seen`."""

    def __post_init__(self) -> None:
        self.count = self.stop - self.start
        self.past = self.fed.past + self.start - self.fed.void
        self.seen = self.fed.seen(self.start, self.stop)

    @property
    def chained(self) -> bool:
        """Whether a place in memory is a position, counted from the first row that is not void."""
        return self.seen is None

    def first_seen(self, row: int, window: int) -> int:
        """The first place in memory that any of the rows from `row` on may see in a window."""
        start = self.past + row if self.chained else max(0, self.fed.base - self.fed.void)
        return max(0, start + 1 - window)

    def visible(self, window: int | None) -> Tensor:
        """Bool [count, past + count]."""
        seen = self.seen
        if seen is None:
            seen = np.tri(self.count, self.past + self.count, self.past, bool)
        if window is not None:
            keys = self.fed.key_positions(self.stop)
            seen = seen & (keys > keys[-self.count :, None] - window)
        return torch.from_numpy(seen)

    def reach(self, key: Tensor, value: Tensor) -> Memory:
        """The memory, with room for these rows."""
        memory = self.fed.memory
        memory.reach(self.past + self.count, self.fed.cache.reserve, key, value)
        return memory


class Pass:
    """Rows of many segments that are computed at once."""

    def __init__(self, fed: Sequence[Fed], number: int) -> None:
        self.runs: list[Run] = []
        row = 0
        for one in fed:
            for start, stop in one.runs(number):
                self.runs.append(Run(one, start, stop, row))
                row += stop - start

    @property
    def token_ids(self) -> list[int]:
        """Of every row."""
        return [token for run in self.runs for token in run.fed.token_ids[run.start : run.stop]]

    @property
    def positions(self) -> list[int]:
        """Those of the rows' features: one less than the tokens'."""
        return [p - 1 for run in self.runs for p in run.fed.positions[run.start : run.stop]]

    def features(self) -> Tensor:
        """[rows, d]."""
        found: list[Tensor] = []
        for run in self.runs:
            for row in range(run.start, run.stop):
                feature = run.fed.features[row]
                if feature is None:
                    feature = run.fed.outputs[run.fed.parent(row)]
                found.append(feature)
        return torch.stack(found)

    def wanted(self) -> list[int]:
        """The rows that logits are asked of."""
        return [
            run.row + row - run.start
            for run in self.runs
            for row in range(max(run.start, run.fed.logits_from), run.stop)
        ]

    def keep(self, outputs: Tensor, *, last: bool) -> None:
        """Note the rows' outputs; in the `last` pass only those that may be asked for."""
        for run in self.runs:
            fed, skipped = run.fed, 0
            if last:
                first = fed.cache.first_kept(fed.past + fed.count)
                first = first if fed.parents is None else min(first, fed.base - 1)
                skipped = min(max(0, first - fed.past - run.start), run.count - 1)
            block = outputs[run.row + skipped : run.row + run.count]
            place = fed.past + run.start + skipped
            if skipped:
                block = block.clone()
            fed.outputs |= dict(enumerate(rows_of(block), place))
