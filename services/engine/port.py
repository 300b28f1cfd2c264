"""What workers need of an engine, be there a model in it or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from services.engine.native.kv import KVBudget, KVCache
from services.engine.native.layout import Segment

if TYPE_CHECKING:
    from services.contract.types import TokenizerBundle


class Forwards(Protocol):
    """Packed, ragged steps for many sessions. One caller at a time."""

    model_id: str
    dtype: str
    fingerprint: str
    bundle: TokenizerBundle | None
    vocab_size: int
    head_ids: Tensor | None
    budget: KVBudget
    max_context_length: int

    @property
    def kv_tokens_used(self) -> int:
        """Tokens of K/V reserved by open caches."""

    @property
    def kv_tokens_capacity(self) -> int:
        """Tokens of K/V the engine may hold."""

    def new_cache(self, reserve: int) -> KVCache:
        """An empty cache for at most `reserve` tokens; raises Overloaded without room."""

    def forward(self, segments: Sequence[Segment], /) -> list[Tensor]:
        """Append the segments' tokens to their caches; logits [rows, V] per segment."""
