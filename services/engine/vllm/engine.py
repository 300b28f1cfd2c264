"""A model that vLLM runs, many sessions, one forward at a time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from services.engine.budgeted import BudgetedEngine, check_apart, place
from services.engine.port import Capability, Segment
from services.engine.vllm.blocks import Blocks
from services.engine.vllm.extension import Step
from services.engine.vllm.kv import BlockCache
from services.engine.vllm.passes import Passes, Row, Work, works_of

if TYPE_CHECKING:
    from services.contract.types import TokenizerBundle


class VllmEngine(BudgetedEngine):
    """The port over blocks and passes. Single-threaded: one caller at a time."""

    head_ids: Tensor | None = None
    capabilities = frozenset({Capability.TREES, Capability.WHOLE_VOCABULARY})

    def __init__(
        self,
        compute: Step,
        blocks: Blocks,
        *,
        model_id: str,
        dtype: str,
        vocab_size: int,
        max_context: int,
        most_tokens: int,
        most_sequences: int,
        fingerprint: str = "",
        bundle: TokenizerBundle | None = None,
    ) -> None:
        """Use `loading.load`. `most_tokens`, `most_sequences`: of a pass."""
        self._compute = compute
        self.budget: Blocks = blocks
        self.model_id, self.dtype = model_id, dtype
        self.vocab_size, self.max_context_length = vocab_size, max_context
        self._most_tokens, self._most_sequences = most_tokens, most_sequences
        self.fingerprint, self.bundle = fingerprint, bundle

    def new_cache(self, reserve: int) -> BlockCache:
        """An empty cache for at most `reserve` tokens; raises Overloaded without room."""
        return BlockCache(self.budget, reserve)

    def forward(self, segments: Sequence[Segment], /) -> list[Tensor]:
        """See `Engine.forward`."""
        if not segments:
            return []
        check_apart(segments)
        placed = [place(segment, BlockCache) for segment in segments]
        for segment, one in zip(segments, placed, strict=True):
            self.check_ranges(segment.token_ids, one.positions)
        works = works_of(zip(segments, placed, strict=True))
        rows = self._rows(works)
        # Last of all: what failed before has changed nothing that counts.
        for work in works:
            work.placed.cache.wrote(work.placed, work.segment.token_ids, work.held)
        return rows

    def _rows(self, works: Sequence[Work]) -> list[Tensor]:
        """Logits float32 [rows, V] of each segment."""
        found: list[Row] = []
        parts: list[Tensor] = []
        passes = Passes(works, self.budget, self._most_tokens, self._most_sequences)
        with closing(passes):
            for one in passes:
                logits = self._compute(one)
                if logits is not None:
                    parts.append(logits.float())
                    found += one.rows
        counts = [len(work.segment.token_ids) - work.segment.logits_from for work in works]
        if not parts:
            return [torch.empty(0, self.vocab_size) for _ in works]
        logits = parts[0] if len(parts) == 1 else torch.cat(parts)
        order = sorted(range(len(found)), key=found.__getitem__)
        if order != list(range(len(found))):
            logits = logits[torch.tensor(order, device=logits.device)]
        return list(logits.split_with_sizes(counts))
