"""A drafter core on a language model that is a function, and what it emitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from services.contract import types as t
from services.drafter.core import DrafterCore
from services.drafter.methods.graph.tree_growth import Growth
from services.drafter.methods.model.model import ModelDrafter
from services.engine.port import Segment
from tests import fake_engine
from tests.fake_engine import VOCAB


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


class FakeEngine(fake_engine.FakeEngine):
    """A language model whose scores lie far apart, so that all choices are sure."""

    fingerprint = "f" * 8

    def __init__(self, capacity: int = 1000, context: int = 500) -> None:
        super().__init__(capacity, context)

    @staticmethod
    def logits(text: Sequence[int]) -> Tensor:
        mix = t.extend_hash(t.EMPTY_HASH, text)
        return torch.tensor(
            [float(t.extend_hash(mix, (token,)) >> 40) / 2**22 for token in range(VOCAB)]
        )

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
        self.events: list[t.DrafterEvent] = []
        self.drafter = drafter or ModelDrafter(engine, step_tokens=step_tokens, q_top=q_top)
        self.core = DrafterCore(
            {"model": self.drafter}, emit=lambda _, event: self.events.append(event), worker_id="m"
        )

    def open(self, session: str, prompt: Sequence[int], **changes: Any) -> None:
        values: dict[str, Any] = {
            "epoch": 1,
            "committed": (),
            "mode": t.VerifyMode.GREEDY,
            "sampling": t.ResolvedSampling(max_tokens=60),
            "seed": 7,
            "window": 6,
        }
        values |= changes
        self.core.handle(0, t.OpenDraft(session=session, prompt=tuple(prompt), **values))

    def commit(self, session: str, base: int, tokens: Sequence[int], epoch: int = 1) -> None:
        self.core.handle(0, t.CommitDraft(session, epoch, base, tuple(tokens)))

    def credit(self, session: str, window: int) -> None:
        self.core.handle(0, t.Credit(session, window))

    def run(self) -> list[t.Draft]:
        for _ in range(1000):
            if not self.core.step():
                return self.take()
        raise AssertionError("the core never comes to rest")

    def take(self) -> list[t.Draft]:
        drafts = [event for event in self.events if isinstance(event, t.Draft)]
        self.events.clear()
        return drafts


def followed(
    harness: Harness, moves: Sequence[tuple[int, int, Sequence[int], bool]]
) -> Iterator[tuple[list[int], t.Draft]]:
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
                assert draft.prefix_hash == t.extend_hash(t.EMPTY_HASH, before[3:])
                yield before, draft
            assert cache.tokens == session.text[: cache.length]
        tail = session.text[3 + session.committed_length :]
        epoch += bump
        harness.commit("s", session.committed_length, [*tail[:agreed], *other], epoch)
        assert cache.tokens == session.text[: cache.length]


def tokens_of(drafts: Sequence[t.Draft], session: str = "s") -> list[int]:
    return [token for draft in drafts if draft.session == session for token in draft.tree.token_ids]


def holds_as_if_fresh(engine: Any, cache: Any, text: Sequence[int]) -> None:
    """The K/V of a cache is what a prefill of its text gives; its last token is fed again."""
    assert cache.length == len(text)
    cache.rollback(len(text) - 1)
    (kept,) = engine.forward([Segment(cache, text[-1:])])
    fresh = engine.new_cache(len(text))
    (rows,) = engine.forward([Segment(fresh, text)])
    torch.testing.assert_close(kept[-1], rows[-1], atol=1e-4, rtol=1e-4)
    fresh.free()
