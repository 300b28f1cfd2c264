"""The engine of rank 0: what it does, the other ranks do, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from services.contract.errors import PacelineError, StartError
from services.engine.budgeted import BudgetedEngine
from services.engine.native.engine import NativeEngine
from services.engine.native.kv import PagedBudget, PagedCache
from services.engine.native.parallel.mirror import Journal, new_mirrored
from services.engine.native.parallel.ranks import Ranks
from services.engine.port import Capability, Segment
from services.engine.spec import ModelSpec


class Leader(BudgetedEngine):
    """A `NativeEngine` that runs on all ranks.

    A forward that fails for other reasons than its segments ends the process.
    """

    capabilities = frozenset({Capability.TREES, Capability.WHOLE_VOCABULARY})

    def __init__(self, engine: NativeEngine, ranks: Ranks, capacity: int) -> None:
        """`capacity`: tokens of K/V that the rank with the least room holds."""
        self._engine = engine
        self._ranks = ranks
        self._journal = Journal()
        self.budget: PagedBudget = engine.budget
        self.budget.capacity = capacity
        self.model_id, self.dtype = engine.model_id, engine.dtype
        self.fingerprint, self.bundle = engine.fingerprint, engine.bundle
        self.vocab_size, self.head_ids = engine.vocab_size, engine.head_ids
        self.max_context_length = engine.max_context_length

    @classmethod
    def load(cls, spec: ModelSpec, ranks: Ranks) -> Leader:
        """Load `spec.model` over the ranks, each of which checks its own part.

        Raises StartError as `NativeEngine.load` does, and for a model that cannot be split.
        """
        try:
            engine = NativeEngine.load(replace(spec, threads=threads_of(spec)), ranks.read)
        except PacelineError:
            ranks.settle()
            raise
        if engine.head_ids is not None:
            raise StartError(f"target: {spec.model} is a distilled drafter, not a whole model")
        return cls(engine, ranks, min([engine.kv_tokens_capacity, *ranks.serve()]))

    def new_cache(self, reserve: int) -> PagedCache:
        """An empty cache for at most `reserve` tokens; raises Overloaded without room."""
        return new_mirrored(self._journal, self.budget, reserve)

    def forward(self, segments: Sequence[Segment]) -> list[Tensor]:
        """As `NativeEngine.forward`, on all ranks.

        Raises ValueError, with nothing changed anywhere, for a segment that does not fit.
        """
        if not segments:
            return []
        layout = self._engine.lay_out(segments)
        message = self._journal.told_with(segments)
        try:
            self._ranks.tell(message)
            return self._engine.compute(layout)
        except Exception as error:
            self._ranks.give_up(error)


def threads_of(spec: ModelSpec) -> int:
    """Threads of each rank: as asked for, else this machine's divided among them."""
    return spec.threads or max(1, torch.get_num_threads() // spec.tensor_parallel)
