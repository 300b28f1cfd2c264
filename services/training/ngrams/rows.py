"""What a target says at every row of a block, as its verdicts will tell it."""

from __future__ import annotations

from collections.abc import Sequence

from services.contract.top_rows import WIDTH
from services.contract.types import DraftTree
from services.engine.native import NativeEngine
from services.engine.port import Segment
from services.engine.sampling import likeliest


class TargetReader:
    """Verifies drafts of one text after the other, for their rows alone."""

    def __init__(self, engine: NativeEngine, longest: int) -> None:
        """`longest`: tokens of a text with its draft."""
        self._engine = engine
        self._cache = engine.new_cache(longest)
        self._text: list[int] = []

    def close(self) -> None:
        """Give the K/V back."""
        self._cache.free()

    def __call__(self, text: Sequence[int], tree: DraftTree) -> list[list[int]]:
        """The likeliest tokens after the text, and after each node of a draft behind it."""
        goes_on = list(text[: len(self._text)]) == self._text
        known = min(len(self._text) if goes_on else 0, len(text) - 1)
        self._cache.rollback(known)
        fresh = len(text) - known
        parents = [*range(-1, fresh - 1), *(fresh + above for above in tree.every_parent)]
        tokens = [*text[known:], *tree.token_ids]
        (logits,) = self._engine.forward([Segment(self._cache, tokens, parents, fresh - 1)])
        self._cache.keep_path(known, range(fresh))
        self._text = list(text)
        return likeliest(logits, min(WIDTH, logits.shape[-1])).tolist()
