"""An EAGLE-3 head as an engine: drafts from the target's states, see `services.engine.eagle`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from services.contract.errors import StartError
from services.engine.budgeted import BudgetedEngine, check_apart
from services.engine.eagle.attention import Attention
from services.engine.eagle.cache import EagleCache, Fuse
from services.engine.eagle.head import Fusion, Head
from services.engine.eagle.step import Fed, Pass
from services.engine.native.attending import Scoring
from services.engine.native.device_memory import free_bytes, kv_capacity
from services.engine.native.kv import PagedBudget
from services.engine.port import Capability, Segment
from services.engine.spec import ModelSpec

if TYPE_CHECKING:
    from services.contract.types import TokenizerBundle
    from services.engine.eagle.layout import HeadConfig
    from services.engine.eagle.readings import Reading


class Table(NamedTuple):
    """A row for each token: the head's own, or the target's."""

    embeddings: Tensor
    columns: Tensor
    """Of the output, as they are stored."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a head needs of the model that it drafts for."""

    layers: int
    width: int
    vocab_size: int
    context: int
    bundle: TokenizerBundle | None = None


class EagleEngine(BudgetedEngine):
    """A head for many sessions, one forward at a time. One caller at a time."""

    capabilities = frozenset({Capability.TREES})

    def __init__(
        self,
        config: HeadConfig,
        weights: Any,
        table: Table,
        target: Target,
        spec: ModelSpec,
        *,
        readings: Sequence[Reading],
        fingerprint: str = "",
    ) -> None:
        """`weights`: see `services.engine.eagle.head`; use `loading.load_head` instead."""
        self.readings = tuple(readings)
        """What the head's layout leaves open; see `read_as`."""
        self.state_width = len(readings[0].layers) * config.target_width
        self.model_id, self.dtype, self.fingerprint = spec.model, spec.dtype, fingerprint
        self.bundle, self.vocab_size = target.bundle, target.vocab_size
        # However short the texts were that it was trained on: positions go on, and it is judged.
        self.max_context_length = min(target.context, spec.max_context or target.context)
        self.parallel = config.parallel
        self.head_ids: Tensor | None
        """Token ids that the logits' columns stand for, int64 [m], ascending."""
        self.head_ids, columns = _columns(
            spec.model, weights.head_ids(config), table.columns, self.vocab_size
        )
        self._columns = len(self.head_ids)
        self._mask_id = config.mask_id
        rows = max(config.vocab_size, self.vocab_size)
        self._head = Head(config, weights, _padded(table.embeddings, rows), columns, spec)
        self._scoring = [Scoring(window=window) for window in config.windows]
        self.read_as(readings[0])
        self._fuse = self._fusion(config, weights, spec)
        self._mask = self._mask_feature(weights) if self.parallel > 1 else None
        self.budget: PagedBudget = PagedBudget(0, config.layers)
        self.budget.capacity = self._capacity(config, spec)

    def read_as(self, reading: Reading) -> None:
        """Compute so from now on; caches that hold something are of no use then."""
        self.reading, self.layers = reading, reading.layers
        self._head.norm_first = reading.norm_before_residual

    def _fusion(self, config: HeadConfig, weights: Any, spec: ModelSpec) -> Fuse:
        fusion = Fusion(config, len(self.readings[0].layers), weights, spec.dtype, spec.device)
        return Fuse(lambda states: fusion(states).to(self._head.dtype), self.state_width)

    def _mask_feature(self, weights: Any) -> Tensor:
        return self._fuse(weights("mask_hidden").reshape(1, -1))[0]

    def _capacity(self, config: HeadConfig, spec: ModelSpec) -> int:
        size = torch.finfo(self._head.dtype).bits // 8
        per_token = 2 * config.layers * config.kv_heads * config.head_width * size
        free = free_bytes(spec.device)
        longest = self.max_context_length
        return kv_capacity(self.model_id, spec.kv_capacity_tokens, per_token, longest, free)

    @property
    def soft_ids(self) -> range:
        """Token ids that stand for masks, right after the vocabulary: see `parallel`."""
        return range(self.vocab_size, self.vocab_size + max(0, self.parallel - 1))

    def new_cache(self, reserve: int) -> EagleCache:
        """An empty cache for at most `reserve` tokens; raises Overloaded without room."""
        return EagleCache(self.budget, reserve, self._fuse)

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment]) -> list[Tensor]:
        """Append the segments' tokens to their caches; logits float32 [rows, columns] of each.

        Rows of tokens before which nothing was known are zeros. See the port.
        """
        if not segments:
            return []
        check_apart(segments)
        fed = [Fed(segment, self.soft_ids, self._mask) for segment in segments]
        for one in fed:
            self.check_ranges(one.token_ids, one.positions, len(self.soft_ids))
        said = self._said(fed)
        # Last of all: a step that failed is run again, and its tokens must not stand there twice.
        for one in fed:
            one.absorb()
        return said

    def _said(self, fed: Sequence[Fed]) -> list[Tensor]:
        last = max(max(one.passes) for one in fed)
        parts = [self._computed(Pass(fed, number), number == last) for number in range(last + 1)]
        counts = [one.count - one.logits_from for one in fed]
        if len(parts) == 1 and len(parts[0]) == sum(counts):
            return list(parts[0].split_with_sizes(counts))
        return list(self._spread(fed, parts).split_with_sizes(counts))

    def _computed(self, work: Pass, last: bool) -> Tensor:
        """Logits of the wanted rows of a pass; their outputs are noted."""
        tokens = work.token_ids
        if self._mask is not None:
            tokens = [self._mask_id if t >= self.vocab_size else t for t in tokens]
        rows, outputs = self._head.forward(
            tokens, work.features(), work.positions, Attention(work.runs, self._scoring)
        )
        work.keep(outputs, last=last)
        wanted = work.wanted()
        if len(wanted) < len(rows):
            rows = rows.index_select(0, torch.tensor(wanted, dtype=torch.long, device=rows.device))
        return self._head.logits(rows)

    def _spread(self, fed: Sequence[Fed], parts: Sequence[Tensor]) -> Tensor:
        """All wanted rows in the order of the segments; zeros for those that are void."""
        where: list[list[int]] = [[] for _ in parts]
        row = 0
        for one in fed:
            for number in one.passes[one.logits_from :]:
                if number >= 0:
                    where[number].append(row)
                row += 1
        whole = torch.zeros(row, self._columns, device=self._head.device)
        for rows, part in zip(where, parts, strict=True):
            whole.index_copy_(0, torch.tensor(rows, dtype=torch.long, device=whole.device), part)
        return whole


def _columns(
    head: str, named: tuple[Tensor, Tensor | None], columns: Tensor, vocab_size: int
) -> tuple[Tensor, Tensor]:
    """Ids and rows of the output, both ascending; without those that the target does not have.

    Raises StartError where that is all of them.
    """
    ids, order = named
    known = ids < vocab_size
    if not bool(known.any()):
        raise StartError(f"head {head}: its columns stand for no token of its target")
    if order is None and bool(known.all()):
        return ids, columns
    order = torch.arange(len(ids)) if order is None else order
    return ids[known], columns[order[known]]


def _padded(table: Tensor, rows: int) -> Tensor:
    """With zeros for tokens that are in one vocabulary and not in the other."""
    return table if len(table) >= rows else F.pad(table, (0, 0, 0, rows - len(table)))
