"""A drafter core on a language model that is a function, and what it emitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor

from services.contract import types as t
from services.contract.frames import DraftName, draft_key
from services.contract.worker_messages import EndSession, SessionGone, SetWindow
from services.drafter.hypotheses.core import FRAME_MS
from services.drafter.hypotheses.session import HypothesisSession
from services.drafter.methods.graph.tree_growth import Growth
from services.drafter.methods.model.model import ModelDrafter
from services.engine.native import NativeEngine
from services.engine.port import Segment
from services.engine.sampling import RowContext, choose
from services.engine.spec import ModelSpec
from tests import fake_engine
from tests.fake_engine import VOCAB
from tests.models import tiny_model
from tests.services import hypothesis_kit
from tests.services.hypothesis_kit import brought, drafts_of, starting, step

EXACT = (t.VerifyMode.GREEDY, t.VerifyMode.COUPLED)
SAMPLED = (t.VerifyMode.STANDARD, t.VerifyMode.BLOCK)
GREEDY = t.ResolvedSampling(max_tokens=60)
COUPLED = t.ResolvedSampling(temperature=1.2, top_p=0.9, max_tokens=60)
PENALISED = t.ResolvedSampling(
    max_tokens=60, temperature=0.8, frequency_penalty=0.7, repetition_penalty=1.3
)
PROMPT = list(range(20, 50))
"""Of real models."""
_OF_AN_OPENING = {own.name for own in fields(t.OpenDraft)}


def opening(prompt: Sequence[int] = (1, 2, 3), **changes: Any) -> t.OpenDraft:
    """An OpenDraft; sampling parameters may be given by their names."""
    own = {name: changes.pop(name) for name in list(changes) if name in _OF_AN_OPENING}
    values = {"mode": t.VerifyMode.GREEDY, "seed": 7}
    values["sampling"] = t.ResolvedSampling(**({"max_tokens": 60} | changes))
    return t.OpenDraft(tuple(prompt), **(values | own))


def real_engine(arch: str = "llama", **spec: Any) -> NativeEngine:
    """A tiny model with random weights."""
    torch.set_num_threads(1)
    return NativeEngine.from_model(tiny_model(arch), spec=ModelSpec(arch, **spec))


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


class Broken(FakeEngine):
    """The same, without a finite law behind five tokens."""

    @staticmethod
    def logits(text: Sequence[int]) -> Tensor:
        row = FakeEngine.logits(text)
        return row if len(text) < 5 else row * torch.nan


class SoftEngine(FakeEngine):
    """The same with three look-ahead embeddings, whose ids its logits depend on like any."""

    soft_ids = range(VOCAB, VOCAB + 3)

    def ahead(self, text: Sequence[int], steps: int) -> list[Tensor]:
        """Logits of the text's last row and of `steps` look-ahead rows behind it."""
        return [self.logits([*text, *self.soft_ids[:step]]) for step in range(steps + 1)]


class Drafted(NamedTuple):
    """A draft that left, or a part of one, of a session by its name; see `DraftRow`."""

    session: str
    name: DraftName
    position: int
    hash: int
    tree: t.DraftTree
    reach: tuple[float, ...]
    sources: bytes
    final: bool
    draft_ms: float

    @property
    def key(self) -> int:
        """What its draws are keyed by, in term 1: a tree has its name once it is whole."""
        number = self.name.number - (self.tree.parents is not None)
        return draft_key(1, self.name._replace(number=number))


class Worker(hypothesis_kit.Worker):
    """A core with some drafters, whose sessions have names. Each level leaves in a frame."""

    def __init__(self, drafters: dict[str, Any], **options: Any) -> None:
        self.handles: dict[str, int] = {}
        super().__init__(drafters, **({"clock": _slow_clock()} | options))

    def handle(self, session: str) -> int:
        """What the core calls a session."""
        return self.handles.setdefault(session, 1 + len(self.handles))

    def open(self, session: str = "s", prompt: Sequence[int] = (1, 2, 3), **changes: Any) -> None:
        values = {"session_id": session, "window": 6, "max_tokens": 60}
        self.core.handle(0, starting(self.handle(session), prompt, **(values | changes)))

    def say(self, session: str, position: int, tokens: Sequence[int], **more: Any) -> None:
        """A step brings tokens to one session."""
        self.core.handle(0, step(brought(self.handle(session), position, *tokens, **more)))

    def allow(self, session: str, window: int) -> None:
        self.core.handle(0, SetWindow(self.handle(session), window))

    def close(self, session: str = "s") -> None:
        self.core.handle(0, EndSession(self.handle(session)))

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.core.step()

    def run(self) -> list[Drafted]:
        """Step until idle; the drafts since they were last taken."""
        for _ in range(1000):
            if not self.core.step():
                return self.drafted()
        raise AssertionError("the core never comes to rest")

    def drafted(self) -> list[Drafted]:
        """The drafts that left since they were last taken."""
        names = {handle: name for name, handle in self.handles.items()}
        return [Drafted(names[row.handle], *row[1:]) for row in drafts_of(self.take())]

    def drafts(self, prompt: Sequence[int] = (1, 2, 3), **changes: Any) -> list[Drafted]:
        """Open the session `s`; what is drafted."""
        self.open("s", prompt, **changes)
        return self.run()

    def draft(self, prompt: Sequence[int] = (1, 2, 3), **changes: Any) -> Drafted:
        """Open the session `s`; the only draft."""
        (draft,) = self.drafts(prompt, **changes)
        return draft

    @property
    def gone(self) -> dict[str, SessionGone]:
        """The sessions that are gone since events were last taken."""
        names = {handle: name for name, handle in self.handles.items()}
        every = [event for _, event in self.events if isinstance(event, SessionGone)]
        return {names[event.handle]: event for event in every}

    @property
    def session(self) -> HypothesisSession:
        """The session `s`."""
        return self.session_of("s")

    def session_of(self, session: str) -> HypothesisSession:
        return self.core._links[0][self.handle(session)].session


def _slow_clock() -> Callable[[], int]:
    """Each reading is a frame's time after the last one."""
    readings = count(step=int(FRAME_MS * 1e6))
    return lambda: next(readings)


class Harness(Worker):
    """A core with one drafter: `model`, if none is given."""

    def __init__(
        self, engine: Any = None, step_tokens: int = 64, q_top: int = 64, drafter: Any = None
    ) -> None:
        self.engine = engine or FakeEngine()
        self.drafter: Any = drafter or ModelDrafter(
            self.engine, step_tokens=step_tokens, q_top=q_top
        )
        super().__init__({"model": self.drafter})

    @property
    def state(self) -> Any:
        """What the drafter holds of the session `s`."""
        return self.state_of("s")

    def state_of(self, session: str) -> Any:
        return self.drafter._sessions[0, self.handle(session)]

    def answered(self, position: int, tokens: Sequence[int]) -> list[Drafted]:
        """What a step of the session `s` brings in one level; `forwards` are that level's."""
        self.engine.forwards.clear()
        self.say("s", position, tokens)
        self.core.step()
        return self.drafted()


def followed(
    harness: Harness, moves: Sequence[tuple[int, int, Sequence[int]]]
) -> Iterator[tuple[list[int], Drafted]]:
    """Every draft of session `s`, opened on three tokens, with the text before it.

    A move: levels, and of a step how many drafted tokens it says, and others behind them. KV is a
    prefix of the text after each of them.
    """
    session, cache = harness.session, harness.engine.caches[0]
    for levels, agreed, other in moves:
        for _ in range(levels):
            before = list(session.text)
            harness.core.step()
            for draft in harness.drafted():
                assert draft.hash == t.extend_hash(t.EMPTY_HASH, before[3:])
                yield before, draft
            assert cache.tokens == session.text[: cache.length]
        tail = session.text[3 + session.committed_length :]
        harness.say("s", session.committed_length, [*tail[:agreed], *other])
        assert cache.tokens == session.text[: cache.length]


def tokens_of(drafts: Sequence[Drafted], session: str = "s") -> list[int]:
    return [token for draft in drafts if draft.session == session for token in draft.tree.token_ids]


def paths_of(tree: t.DraftTree) -> list[tuple[int, ...]]:
    """The tokens from the text down to each node."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.token_ids, tree.every_parent, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def trunk_of(drafts: Sequence[Drafted]) -> list[int]:
    """Chains in a row, or the first child of every node of one tree."""
    if all(draft.tree.parents is None for draft in drafts):
        return tokens_of(drafts)
    (draft,) = drafts
    parents = draft.tree.parents or ()
    return [draft.tree.token_ids[parents.index(parent)] for parent in sorted(set(parents))]


def plain_text(
    engine: NativeEngine,
    prompt: Sequence[int],
    count: int,
    mode: t.VerifyMode = t.VerifyMode.GREEDY,
    sampling: t.ResolvedSampling = GREEDY,
    position: int = 0,
) -> list[int]:
    """What the model writes alone, one token a forward, with seed 7, from `position` on."""
    cache = engine.new_cache(len(prompt) + count)
    text, fed = list(prompt), 0
    while len(text) < len(prompt) + count:
        (rows,) = engine.forward([Segment(cache, text[fed:], logits_from=len(text) - fed - 1)])
        fed = len(text)
        row = RowContext(mode, sampling, 7, position + len(text) - len(prompt))
        text += choose(rows, [row])
    cache.free()
    return text[len(prompt) :]


def said_in_rounds(
    harness: Harness, rounds: Sequence[int], depth: int, right: Any = None
) -> list[int]:
    """What steps said: each of them so many of `depth` drafted tokens, and another one.

    `right`: what is to be drafted after the tokens said so far.
    """
    said: list[int] = []
    for number, agreed in enumerate(rounds, start=2):
        tail = trunk_of(harness.run())
        assert len(tail) == depth
        assert right is None or tail == right(said)
        new = [*tail[:agreed], 60 + number]
        harness.say("s", len(said), new)
        said += new
    harness.core.step()
    return said


def holds_as_if_fresh(engine: Any, cache: Any, text: Sequence[int]) -> None:
    """The K/V of a cache is what a prefill of its text gives; its last token is fed again."""
    assert cache.length == len(text)
    cache.rollback(len(text) - 1)
    (kept,) = engine.forward([Segment(cache, text[-1:])])
    fresh = engine.new_cache(len(text))
    (rows,) = engine.forward([Segment(fresh, text)])
    torch.testing.assert_close(kept[-1], rows[-1], atol=1e-4, rtol=1e-4)
    fresh.free()
