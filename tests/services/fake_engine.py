"""An engine without a model: each row's law is a pure function of the text before it.

The cache holds tokens where the real one holds K/V, so a token fed twice,
skipped, or left over from a rejected branch changes every law after it.
"""

from hashlib import blake2b

import torch

from services.engine.native import Segment
from services.engine.native.kv import Budgeted, KVBudget
from tests.token_cache import TokenCache

VOCAB = 12


def law(text, vocab=VOCAB, scale=2.0):
    """Logits [V] after `text`."""
    digest = blake2b(bytes(str(tuple(text)), "ascii"), digest_size=7).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
    return torch.randn(vocab, generator=generator) * scale


class FakeCache(TokenCache):
    def __init__(self, budget, reserve):
        super().__init__(budget, reserve)
        self.tree = None

    def rollback(self, length):
        assert self.tree is None, "a tree must be resolved first"
        super().rollback(length)

    def keep_path(self, base, path):
        if self.tree is not None:
            tree_base, parents = self.tree
            assert tree_base == base
            assert [parents[node] for node in path] == [-1, *path][: len(path)]
        super().keep_path(base, path)
        self.tree = None

    def copy_prefix(self, other, length):
        assert other.tree is None
        super().copy_prefix(other, length)

    def park(self):
        assert self.tree is None
        return super().park()


class FakeEngine(Budgeted):
    """`poison`: a text whose row is NaN; `explode`: a last token that makes a forward raise."""

    def __init__(self, capacity=100_000, context=512, poison=None, explode=None):
        self.model_id, self.fingerprint, self.dtype = "fake", "fake-fingerprint", "float32"
        self.vocab_size, self.max_context_length = VOCAB, context
        self.bundle = self.head_ids = None
        self.poison, self.explode = poison, explode
        self.budget = KVBudget(capacity)
        self.forwards = []

    def new_cache(self, reserve):
        return FakeCache(self.budget, reserve)

    def forward(self, segments):
        if any(self.explode in segment.token_ids for segment in segments):
            raise RuntimeError("the fake engine exploded")
        self.forwards.append([len(segment.token_ids) for segment in segments])
        return [self._run(segment) for segment in segments]

    def _run(self, segment: Segment):
        cache = segment.cache
        past = list(cache.tokens)
        parents = segment.parents
        if parents is None:
            parents = range(-1, len(segment.token_ids) - 1)
        else:
            cache.tree = (len(past), tuple(parents))
        texts = []
        for token, parent in zip(segment.token_ids, parents, strict=True):
            texts.append([*(texts[parent] if parent >= 0 else past), token])
        cache.tokens += segment.token_ids
        assert cache.length <= cache.reserve, "beyond the reservation"
        deepest = max(len(text) for text in texts)
        assert deepest <= self.max_context_length, "beyond the context"
        rows = [self._row(text) for text in texts[segment.logits_from :]]
        return torch.stack(rows) if rows else torch.empty(0, VOCAB)

    def _row(self, text):
        return law(text) * (float("nan") if text == self.poison else 1.0)
