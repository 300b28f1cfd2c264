"""An engine that looks the model's logits up instead of computing them.

For a model whose law depends on the last two tokens only, a table of all pairs
is the model. Everything around it (caches, trees, draws, rules) is as ever; a
forward costs a tenth.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from services.contract.types import TokenizerBundle
from services.engine.native import Segment
from services.engine.native.kv import Budgeted, KVBudget
from tests.token_cache import TokenCache


class TableEngine(Budgeted):
    """`logits` [V, V, V]: after tokens a, b. The surface of `Engine` that workers use."""

    model_id, fingerprint, dtype = "table", "", "float32"
    head_ids: Tensor | None = None

    def __init__(
        self, logits: np.ndarray, context: int, bundle: TokenizerBundle | None = None
    ) -> None:
        self._table = torch.from_numpy(logits).float()
        self.budget = KVBudget(1 << 40)
        self.vocab_size, self.max_context_length = len(logits), context
        self.bundle = bundle

    def new_cache(self, reserve: int) -> TokenCache:
        """An empty cache."""
        return TokenCache(self.budget, reserve)

    def forward(self, segments: Sequence[Segment]) -> list[Tensor]:
        """As `Engine.forward`: logits [rows, V] per segment."""
        pairs = [_pairs(segment)[segment.logits_from :] for segment in segments]
        for segment in segments:
            segment.cache.tokens += segment.token_ids
        places = torch.tensor([pair for own in pairs for pair in own], dtype=torch.int64).view(
            -1, 2
        )
        rows = self._table[places[:, 0], places[:, 1]]
        return list(rows.split([len(own) for own in pairs]))


def _pairs(segment: Segment) -> list[tuple[int, int]]:
    """The last two tokens at each row; a text's first token stands for the one before it."""
    tokens, parents = segment.token_ids, segment.parents
    above = range(-1, len(tokens) - 1) if parents is None else parents
    before = segment.cache.tokens[-1] if segment.cache.tokens else tokens[0]
    return [
        (tokens[parent] if parent >= 0 else before, token)
        for token, parent in zip(tokens, above, strict=True)
    ]
