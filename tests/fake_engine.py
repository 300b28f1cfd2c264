"""An engine without a model: each row's logits are a pure function of the text before it.

A cache holds tokens where others hold K/V, so a token fed twice, skipped, or left over from a
rejected branch changes every row after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.contract.types import TokenizerBundle
from services.engine.budgeted import (
    BudgetedCache,
    BudgetedEngine,
    KVBudget,
    Placed,
    check_apart,
    place,
)
from services.engine.limits import check_layers
from services.engine.port import Capability, Segment

VOCAB = 12


def law(text: Sequence[int], vocab: int = VOCAB, scale: float = 2.0) -> Tensor:
    """Logits [V] after `text`."""
    digest = blake2b(bytes(str(tuple(text)), "ascii"), digest_size=7).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
    return torch.randn(vocab, generator=generator) * scale


def text_at(tokens: Sequence[int], tree: tuple[int, Sequence[int]] | None, node: int) -> list[int]:
    """The text that ends with the token at `node`; `tree`: where one starts, and its parents."""
    if tree is None:
        return list(tokens[: node + 1])
    base, parents = tree
    path: list[int] = []
    while node >= base:
        path.append(tokens[node])
        node = base + parents[node - base] if parents[node - base] >= 0 else -1
    return [*tokens[:base], *reversed(path)]


class TokenCache(BudgetedCache):
    """Holds the tokens themselves."""

    def __init__(self, budget: KVBudget, reserve: int) -> None:
        super().__init__(budget, reserve)
        self.tokens: list[int] = []
        self.rolled_back = 0

    def say(self, tokens: Sequence[int]) -> None:
        """Append a chain."""
        self.tokens += tokens
        self.commit(len(tokens), self.length, None)

    def append(self, placed: Placed[TokenCache], tokens: Sequence[int]) -> None:
        """Append a segment's tokens where they go."""
        self.tokens += tokens
        self.commit(placed.count, placed.base, placed.parents)

    def text_at(self, node: int) -> list[int]:
        """The text that a node of the open tree ends, or a token of the chain."""
        return text_at(self.tokens, self._tree, node)

    def rollback(self, length: int) -> None:
        before = self.length
        super().rollback(length)
        self.rolled_back += before - length

    def _copy(self, other: TokenCache, length: int) -> None:
        self.tokens = other.tokens[:length]

    def _move(self, base: int, kept: Sequence[int]) -> None:
        self.tokens[base:] = [self.tokens[base + node] for node in kept]

    def _shorten(self, length: int) -> None:
        del self.tokens[length:]
        super()._shorten(length)

    def _hand_over(self, parked: Any) -> int:
        parked.tokens, self.tokens = self.tokens, []
        return self.length

    def _drop(self) -> None:
        """It stays to be looked at."""


class FakeEngine(BudgetedEngine):
    """`poison`: a text whose row is NaN; `explode`: a token that makes a forward raise."""

    model_id, fingerprint, dtype = "fake", "fake-fingerprint", "float32"
    capabilities = frozenset(Capability)
    head_ids: Tensor | None = None
    bundle: TokenizerBundle | None = None
    soft_ids = range(0)
    vocab_size = VOCAB
    num_layers, hidden_width = 4, 3
    watched: tuple[int, ...] = ()

    def __init__(
        self,
        capacity: int = 100_000,
        context: int = 512,
        poison: Sequence[int] | None = None,
        explode: int | None = None,
        vocab_size: int | None = None,
    ) -> None:
        self.max_context_length = context
        self.vocab_size = vocab_size or self.vocab_size
        self.poison, self.explode = poison, explode
        self.budget = KVBudget(capacity)
        self.forwards: list[list[int]] = []
        """Tokens of each segment of each forward."""
        self.caches: list[TokenCache] = []

    def new_cache(self, reserve: int) -> TokenCache:
        self.caches.append(TokenCache(self.budget, reserve))
        return self.caches[-1]

    def forward(self, segments: Sequence[Segment]) -> list[Tensor]:
        if any(self.explode in segment.token_ids for segment in segments):
            raise RuntimeError("the fake engine exploded")
        if not segments:
            return []
        self.forwards.append([len(segment.token_ids) for segment in segments])
        check_apart(segments)
        placed = [place(segment, TokenCache) for segment in segments]
        for segment, one in zip(segments, placed, strict=True):
            self.check_ranges(segment.token_ids, one.positions, len(self.soft_ids))
        texts = [_texts(*pair) for pair in zip(segments, placed, strict=True)]
        rows = self.rows([text for own in texts for text in own])
        answers = list(rows.split([len(own) for own in texts]))
        # Last of all: what fails before changes nothing.
        for segment, one in zip(segments, placed, strict=True):
            one.cache.append(one, segment.token_ids)
        return answers

    def watch(self, layers: Sequence[int]) -> None:
        check_layers(layers, self.num_layers, self.model_id)
        self.watched = tuple(layers)

    def forward_with_states(self, segments: Sequence[Segment]) -> tuple[list[Tensor], list[Tensor]]:
        placed = [place(segment, TokenCache) for segment in segments]
        whole = [replace(segment, logits_from=0) for segment in segments]
        texts = [_texts(*pair) for pair in zip(whole, placed, strict=True)]
        states = [torch.stack([self.state(text) for text in own]) for own in texts]
        return self.forward(segments), states

    def state(self, text: Sequence[int]) -> Tensor:
        """States [layers x width] of the last token of a text."""
        return torch.cat([law([layer, *text], self.hidden_width) for layer in self.watched])

    def rows(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Logits [texts, V]."""
        if not texts:
            return torch.empty(0, self.vocab_size)
        return torch.stack([self._row(text) for text in texts])

    def _row(self, text: Sequence[int]) -> Tensor:
        return self.logits(text) * (float("nan") if text == self.poison else 1.0)

    def logits(self, text: Sequence[int]) -> Tensor:
        return law(text, self.vocab_size)


def _texts(segment: Segment, placed: Placed[TokenCache]) -> list[list[int]]:
    """The text that each row of a segment follows."""
    tokens = [*placed.cache.tokens, *segment.token_ids]
    tree = None if placed.parents is None else (placed.base, placed.parents)
    rows = range(placed.past + segment.logits_from, len(tokens))
    return [text_at(tokens, tree, row) for row in rows]


class TableEngine(FakeEngine):
    """Looks the logits up, [V, V, V] after tokens a, b; a text's first one stands for both.

    For a model whose law depends on the last two tokens only, a table of all pairs is
    the model, and a forward costs a tenth.
    """

    model_id, fingerprint = "table", ""

    def __init__(
        self, logits: np.ndarray, context: int, bundle: TokenizerBundle | None = None
    ) -> None:
        super().__init__(1 << 40, context, vocab_size=len(logits))
        self._table = torch.from_numpy(logits).float()
        self.bundle = bundle

    def rows(self, texts: Sequence[Sequence[int]]) -> Tensor:
        pairs = [(text[-2] if len(text) > 1 else text[-1], text[-1]) for text in texts]
        places = torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
        return self._table[places[:, 0], places[:, 1]]
