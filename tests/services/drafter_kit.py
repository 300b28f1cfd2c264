"""A drafter core on a language model that is a function, and what it emitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from services.contract.errors import Overloaded
from services.contract.types import (
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
from services.drafter.methods.graph.tree_growth import Growth
from services.drafter.methods.model.model import ModelDrafter
from services.engine.native import Segment

VOCAB = 12


@dataclass
class FixedGrowth:
    """Trees of one size, whatever is accepted; what was is noted."""

    steps: int = 4
    width: int = 8
    nodes: int = 256
    rates: tuple[float, ...] = (0.5, 0.3, 0.1)
    seen: list[tuple[int | None, int]] = field(default_factory=list)

    def growth(self, depth: int) -> Growth:
        assert depth >= 1
        return Growth((self.width,) * self.steps, self.nodes, self.rates)

    def observe(self, hit: int | None, count: int) -> None:
        self.seen.append((hit, count))


@dataclass
class FakeCache:
    """KV as the tokens it was computed from; each entry knows the text it was computed after."""

    engine: FakeEngine
    reserve: int
    tokens: list[int] = field(default_factory=list)
    rolled_back: int = 0
    base: int | None = None
    parents: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.tokens)

    def rollback(self, length: int) -> None:
        assert length <= self.length
        assert self.base is None or length == self.length, "a tree is cut"
        self.rolled_back += self.length - length
        del self.tokens[length:]

    def append(self, segment: Segment, index: int) -> list[int]:
        """One token of a segment; the text it ends."""
        token = segment.token_ids[index]
        if segment.parents is None:
            assert self.base is None, "a tree is unresolved"
            self.tokens.append(token)
            return list(self.tokens)
        if self.base is None:
            self.base = self.length if segment.base is None else segment.base
            self.parents = list(range(-1, self.length - self.base - 1))
        assert segment.base in (None, self.base)
        assert -1 <= segment.parents[index] < len(self.parents)
        self.parents.append(segment.parents[index])
        self.tokens.append(token)
        return self.text_at(len(self.parents) - 1)

    def text_at(self, node: int) -> list[int]:
        """The text that a node of the tree ends."""
        assert self.base is not None
        path = []
        while node >= 0:
            path.append(self.tokens[self.base + node])
            node = self.parents[node]
        return [*self.tokens[: self.base], *path[::-1]]

    def keep_path(self, base: int, path: Sequence[int]) -> None:
        self._keep(base, path, ())
        self.base, self.parents = None, []

    def keep_branch(self, base: int, path: Sequence[int]) -> None:
        index = {path[-1] if path else -1: -1}
        for node, parent in enumerate(self.parents):
            if parent in index:
                index[node] = len(index) - 1
        below = list(index)[1:]
        parents = [index[self.parents[node]] for node in below]
        self._keep(base, path, below)
        self.base, self.parents = (base + len(path), parents) if below else (None, [])

    def _keep(self, base: int, path: Sequence[int], below: Sequence[int]) -> None:
        if self.base is None:
            self.base, self.parents = base, list(range(-1, self.length - base - 1))
        assert base == self.base
        assert [self.parents[node] for node in path] == [-1, *path][: len(path)]
        self.tokens[base:] = [self.tokens[base + node] for node in (*path, *below)]

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
        for index in range(len(segment.token_ids)):
            text = segment.cache.append(segment, index)
            if index >= segment.logits_from:
                rows.append(self.logits(text))
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


class Clear(FakeEngine):
    """The same model with clear laws: each choice is e times as likely as the next."""

    @staticmethod
    def logits(text: Sequence[int]) -> Tensor:
        return -FakeEngine.logits(text).argsort(descending=True).argsort().float()


class SoftEngine(FakeEngine):
    """The same with three look-ahead embeddings, whose ids its logits depend on like any."""

    soft_ids = range(VOCAB, VOCAB + 3)

    def ahead(self, text: Sequence[int], steps: int) -> list[Tensor]:
        """Logits of the text's last row and of `steps` look-ahead rows behind it."""
        return [self.logits([*text, *self.soft_ids[:step]]) for step in range(steps + 1)]


class Harness:
    """A core with one drafter (`model`, if none is given), and what it emitted."""

    def __init__(
        self,
        engine: Any,
        step_tokens: int = 64,
        q_top: int = 64,
        drafter: ModelDrafter | None = None,
    ) -> None:
        self.engine = engine
        self.events: list[DrafterEvent] = []
        self.drafter = drafter or ModelDrafter(engine, step_tokens=step_tokens, q_top=q_top)
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


def followed(
    harness: Harness, moves: Sequence[tuple[int, int, Sequence[int], bool]]
) -> Iterator[tuple[list[int], Draft]]:
    """Every draft of session `s`, opened on three tokens, with the text before it.

    A move: steps, drafted tokens to commit, others behind them, and whether the epoch
    goes on. KV is a prefix of the text after each step and commit.
    """
    session, cache = harness.core._entries[0, "s"].session, harness.engine.caches[0]
    epoch = 1
    for steps, agreed, other, bump in moves:
        for _ in range(steps):
            before = list(session.text)
            harness.core.step()
            for draft in harness.take():
                assert draft.prefix_hash == extend_hash(EMPTY_HASH, before[3:])
                yield before, draft
            assert cache.tokens == session.text[: cache.length]
        tail = session.text[3 + session.committed_length :]
        epoch += bump
        harness.commit("s", session.committed_length, [*tail[:agreed], *other], epoch)
        assert cache.tokens == session.text[: cache.length]


def tokens_of(drafts: Sequence[Draft], session: str = "s") -> list[int]:
    return [t for draft in drafts if draft.session == session for t in draft.tree.token_ids]


def holds_as_if_fresh(engine: Any, cache: Any, text: Sequence[int]) -> None:
    """The K/V of a cache is what a prefill of its text gives; its last token is fed again."""
    assert cache.length == len(text)
    cache.rollback(len(text) - 1)
    (kept,) = engine.forward([Segment(cache, text[-1:])])
    fresh = engine.new_cache(len(text))
    (rows,) = engine.forward([Segment(fresh, text)])
    torch.testing.assert_close(kept[-1], rows[-1], atol=1e-4, rtol=1e-4)
    fresh.free()
