"""An engine that is a table, whose caches count their tokens: so a leak shows."""

from __future__ import annotations

import numpy as np

from services.common.engine.bundle import make_bundle
from services.common.engine.kv import KVBudget
from tests.models import CHAT_TEMPLATE
from tests.proof.table_engine import TableEngine, TokenCache
from tests.proof.two_token_models import letters, target_model

VOCAB, CONTEXT, CAPACITY = 12, 64, 1 << 16


class CountedCache(TokenCache):
    """Takes its reservation from a budget and gives it back."""

    def __init__(self, budget: KVBudget, reserve: int) -> None:
        super().__init__()
        budget.take(reserve)
        self._budget, self._reserve = budget, reserve

    def free(self) -> None:
        """Idempotent."""
        self._budget.give(self._reserve)
        self._reserve = 0


class CountedEngine(TableEngine):
    """Whose caches have a price, as real ones have, and whose ids have an end."""

    @property
    def kv_tokens_used(self) -> int:
        """Tokens reserved by open caches."""
        return self._budget.used

    def new_cache(self, reserve: int) -> CountedCache:
        """Raises Overloaded without room."""
        return CountedCache(self._budget, reserve)


def table_engine(seed: int = 0) -> CountedEngine:
    """A random law over twelve letters, the last of which ends a text."""
    logits = np.random.default_rng(seed).normal(size=(VOCAB,) * 3) * 2.0
    tokenizer = letters(VOCAB)
    tokenizer.chat_template = CHAT_TEMPLATE
    engine = CountedEngine(logits, CONTEXT, make_bundle(tokenizer, target_model(VOCAB)))
    engine._budget = KVBudget(CAPACITY)
    return engine
