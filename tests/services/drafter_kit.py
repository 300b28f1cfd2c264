"""A drafter core on a language model that is a function, and what it emitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from services.common.engine import Segment
from services.common.errors import Overloaded
from services.common.types import (
    EMPTY_HASH,
    CommitDraft,
    Credit,
    Draft,
    DrafterEvent,
    OpenDraft,
    ResolvedSampling,
    VerifyMode,
    extend_hash,
)
from services.drafter.core import DrafterCore
from services.drafter.model import ModelDrafter

VOCAB = 12


@dataclass
class FakeCache:
    """KV as the tokens it was computed from."""

    engine: FakeEngine
    reserve: int
    tokens: list[int] = field(default_factory=list)
    rolled_back: int = 0

    @property
    def length(self) -> int:
        return len(self.tokens)

    def rollback(self, length: int) -> None:
        assert length <= self.length
        self.rolled_back += self.length - length
        del self.tokens[length:]

    def free(self) -> None:
        self.engine.kv_tokens_used -= self.reserve
        self.reserve = 0


class FakeEngine:
    """A language model whose logits are a function of all tokens in the cache."""

    model_id, fingerprint, dtype, bundle = "fake", "f" * 8, "float32", None
    vocab_size = VOCAB
    head_ids: Tensor | None = None
    kv_tokens_capacity = 1000

    def __init__(self, max_context_length: int = 500) -> None:
        self.max_context_length = max_context_length
        self.kv_tokens_used = 0
        self.caches: list[FakeCache] = []
        self.batches: list[list[int]] = []
        self.bad_token: int | None = None

    def new_cache(self, reserve: int) -> FakeCache:
        if self.kv_tokens_used + reserve > self.kv_tokens_capacity:
            raise Overloaded("the KV budget is full")
        self.kv_tokens_used += reserve
        self.caches.append(FakeCache(self, reserve))
        return self.caches[-1]

    def forward(self, segments: Sequence[Segment]) -> list[Tensor]:
        if any(self.bad_token in segment.token_ids for segment in segments):
            raise RuntimeError("the device is on fire")
        if segments:
            self.batches.append([len(segment.token_ids) for segment in segments])
        return [self._run(segment) for segment in segments]

    def _run(self, segment: Any) -> Tensor:
        rows = []
        for index, token in enumerate(segment.token_ids):
            segment.cache.tokens.append(token)
            if index >= segment.logits_from:
                rows.append(self.logits(segment.cache.tokens))
        assert segment.cache.length <= max(segment.cache.reserve, 1)
        return torch.stack(rows) if rows else torch.empty(0, VOCAB)

    @staticmethod
    def logits(text: Sequence[int]) -> Tensor:
        mix = extend_hash(EMPTY_HASH, text)
        return torch.tensor([float(extend_hash(mix, (t,)) >> 40) / 2**22 for t in range(VOCAB)])

    def greedy(self, text: Sequence[int]) -> int:
        return int(self.logits(text).argmax())

    def continuation(self, text: Sequence[int], count: int) -> list[int]:
        text = list(text)
        for _ in range(count):
            text.append(self.greedy(text))
        return text[-count:]


class Harness:
    """A core with one model drafter, and what it emitted."""

    def __init__(self, engine: Any, step_tokens: int = 64, q_top: int = 64) -> None:
        self.engine = engine
        self.events: list[DrafterEvent] = []
        self.drafter = ModelDrafter(engine, step_tokens=step_tokens, q_top=q_top)
        self.core = DrafterCore(
            {"model": self.drafter}, emit=lambda _, event: self.events.append(event), worker_id="m"
        )

    def open(self, session: str, prompt: Sequence[int], **changes: Any) -> None:
        values: dict[str, Any] = {
            "epoch": 1,
            "committed": (),
            "mode": VerifyMode.GREEDY,
            "sampling": ResolvedSampling(max_tokens=60),
            "seed": 7,
            "window": 6,
        }
        values |= changes
        self.core.handle(0, OpenDraft(session=session, prompt=tuple(prompt), **values))

    def commit(self, session: str, base: int, tokens: Sequence[int], epoch: int = 1) -> None:
        self.core.handle(0, CommitDraft(session, epoch, base, tuple(tokens)))

    def credit(self, session: str, window: int) -> None:
        self.core.handle(0, Credit(session, window))

    def run(self) -> list[Draft]:
        for _ in range(1000):
            if not self.core.step():
                return self.take()
        raise AssertionError("the core never comes to rest")

    def take(self) -> list[Draft]:
        drafts = [event for event in self.events if isinstance(event, Draft)]
        self.events.clear()
        return drafts


def tokens_of(drafts: Sequence[Draft], session: str = "s") -> list[int]:
    return [t for draft in drafts if draft.session == session for t in draft.tree.token_ids]
