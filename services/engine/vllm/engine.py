"""A model that vLLM runs, many sessions, one forward at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from services.contract.errors import StartError
from services.engine.budgeted import BudgetedEngine, check_apart, place
from services.engine.limits import check_layers
from services.engine.port import Capability, Segment
from services.engine.vllm.blocks import Blocks
from services.engine.vllm.extension import Step
from services.engine.vllm.kv import BlockCache
from services.engine.vllm.passes import Passes, Row, Work, works_of

if TYPE_CHECKING:
    from services.contract.types import TokenizerBundle


@dataclass(frozen=True, slots=True)
class Watching:
    """How the states of a model of `layers` layers are had; `begin`: whether it gives those.

    `width`: the numbers in one layer's state of a token.
    """

    layers: int
    width: int
    begin: Callable[[tuple[int, ...]], bool]


class VllmEngine(BudgetedEngine):
    """The port over blocks and passes. Single-threaded: one caller at a time."""

    head_ids: Tensor | None = None

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
        watching: Watching | None = None,
    ) -> None:
        """Use `loading.load`. `most_tokens`, `most_sequences`: of a pass."""
        self._compute = compute
        self.budget: Blocks = blocks
        self.model_id, self.dtype = model_id, dtype
        self.vocab_size, self.max_context_length = vocab_size, max_context
        self._most_tokens, self._most_sequences = most_tokens, most_sequences
        self.fingerprint, self.bundle = fingerprint, bundle
        self._watching = watching
        self.num_layers = watching.layers if watching is not None else 0
        self.hidden_width = watching.width if watching is not None else 0

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Chains, trees and, of a model that runs as it is, hidden states."""
        states = set() if self._watching is None else {Capability.HIDDEN_STATES}
        return frozenset({Capability.TREES, *states})

    def new_cache(self, reserve: int) -> BlockCache:
        """An empty cache for at most `reserve` tokens; raises Overloaded without room."""
        return BlockCache(self.budget, reserve)

    def forward(self, segments: Sequence[Segment], /) -> list[Tensor]:
        """See `Engine.forward`."""
        return self._forward(segments, watched=False)[0]

    def watch(self, layers: Sequence[int]) -> None:
        """See `HiddenStates.watch`. Not for compiled models, nor for those that are split."""
        if self._watching is None:
            raise StartError(
                f"{self.model_id}: states of layers need --execution eager and one process"
            )
        check_layers(layers, self._watching.layers, self.model_id)
        if not self._watching.begin(tuple(layers)):
            raise StartError(f"{self.model_id}: vLLM gives no states of this model's layers")

    def forward_with_states(
        self, segments: Sequence[Segment], /
    ) -> tuple[list[Tensor], list[Tensor]]:
        """See `HiddenStates.forward_with_states`."""
        return self._forward(segments, watched=True)

    def _forward(
        self, segments: Sequence[Segment], *, watched: bool
    ) -> tuple[list[Tensor], list[Tensor]]:
        if not segments:
            return [], []
        check_apart(segments)
        placed = [place(segment, BlockCache) for segment in segments]
        for segment, one in zip(segments, placed, strict=True):
            self.check_ranges(segment.token_ids, one.positions)
        works = works_of(zip(segments, placed, strict=True), watched=watched)
        logits, states = self._compute_all(works)
        # Last of all: what failed before has changed nothing that counts.
        for work in works:
            work.placed.cache.wrote(work.placed, work.segment.token_ids, work.held)
        return logits, states

    def _compute_all(self, works: Sequence[Work]) -> tuple[list[Tensor], list[Tensor]]:
        """Logits float32 [rows, V] of each segment, and states [tokens, layers x width]."""
        logits, states = _Rows(), _Rows()
        passes = Passes(works, self.budget, self._most_tokens, self._most_sequences)
        with closing(passes):
            for one in passes:
                found = self._compute(one)
                if found.logits is not None:
                    logits.add(one.rows, found.logits.float())
                if found.states is not None:
                    states.add(one.states, found.states)
        counts = [len(work.segment.token_ids) for work in works]
        wanted = [len(work.segment.token_ids) - work.segment.logits_from for work in works]
        rows = logits.split(wanted) or [torch.empty(0, self.vocab_size)] * len(works)
        return rows, states.split(counts)


class _Rows:
    """Rows of several passes, put in the order of their segments."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._parts: list[Tensor] = []

    def add(self, rows: Sequence[Row], part: Tensor) -> None:
        """Those of a pass."""
        self._rows += rows
        self._parts.append(part)

    def split(self, counts: Sequence[int]) -> list[Tensor]:
        """By segment; nothing where there are none."""
        if not self._parts:
            return []
        whole = self._parts[0] if len(self._parts) == 1 else torch.cat(self._parts)
        order = sorted(range(len(self._rows)), key=self._rows.__getitem__)
        if order != list(range(len(self._rows))):
            whole = whole[torch.tensor(order, device=whole.device)]
        return list(whole.split_with_sizes(counts))
