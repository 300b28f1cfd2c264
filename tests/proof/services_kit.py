"""Texts from the real services: client, orchestrator, Valkey, drafter and verifier over gRPC.

Many sessions at once, in any mix of rules and parameters, on models whose law is
known (`two_token_models`). The workers' engines and rules are the real ones; a
wrong variant is patched into them by the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any

import pytest
from paceline import Generation

from orchestrator.steering.config import Limits
from orchestrator.workers.link import LinkLimits
from services.contract.types import ResolvedSampling
from services.drafter.hypotheses import HypothesisCore
from services.drafter.methods.model.model import ModelDrafter
from services.drafter.protocol import Ask, Proposed
from services.engine.checkpoint.bundle import make_bundle
from services.engine.native import NativeEngine
from services.engine.spec import ModelSpec
from services.scheduling.draft_budget import DraftBudget
from services.scheduling.offers import Allotment, Offer
from services.verifier.running.core import RunningCore
from tests.fake_engine import TableEngine
from tests.integration.cluster import Cluster, Worker, cluster, start_worker
from tests.proof import two_token_models as models
from tests.proof.goodness_of_fit import Fit, Text, fit


@dataclass(frozen=True, slots=True)
class Case:
    """One way to sample and to verify; `sampling` and `speculation` are request options."""

    name: str
    rule: str
    sampling: Mapping[str, Any] = field(default_factory=dict)
    speculation: Mapping[str, Any] = field(default_factory=dict)

    @property
    def resolved(self) -> ResolvedSampling:
        """What the law is computed from."""
        given = dict(self.sampling)
        words = [models.spelt(word) for word in given.pop("bad_words", ())]
        return ResolvedSampling(**given, bad_words=tuple(words))


LONGEST_HOLD = 1.0
"""Seconds."""


class Ahead(DraftBudget):
    """Steps of `block` tokens of a draft that goes on behind them, or of what there is of one.

    It waits for a drafter that is late, so that nearly every step judges a draft, and finds more
    of it for its last row.
    """

    def __init__(self, block: int) -> None:
        super().__init__()
        self._block = block

    def allot(self, offers: Sequence[Offer]) -> list[Allotment]:
        """Of a tree all; so much of a chain, once more than that is there or nothing follows."""
        return [self._of(own) for own in offers]

    def _of(self, own: Offer) -> Allotment:
        if own.tree:
            return Allotment(own.tokens)
        there = own.final or own.tokens > min(self._block, own.window - 1)
        return Allotment(min(own.tokens, self._block), 0.0 if there else LONGEST_HOLD)

    def window(self, _: object, most: int) -> int:
        """Always ahead."""
        return most


@dataclass(frozen=True, slots=True)
class Services:
    """How the cluster drafts and paces.

    `burst`: tokens that the drafter hands over in one level; `ahead`: drafts are of `window`
    tokens, of which a step verifies one burst (`Ahead`), else a step waits for a whole draft, and
    the drafter for the step; `angle`: how far the draft model is from the target;
    `vocab`: the size of their vocabulary;
    `target_table`, `draft_table`: whether forwards are looked up (`table_engine`).
    """

    window: int = 8
    burst: int = 4
    ahead: bool = False
    angle: float = 0.3
    vocab: int = models.VOCAB
    target_table: bool = False
    draft_table: bool = True


@dataclass(frozen=True, slots=True)
class Sample:
    """What the sessions of one case gave; rounds and draft tokens are counted by session."""

    case: Case
    vocab: int
    texts: tuple[Text, ...]
    rounds: tuple[int, ...]
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    rules: frozenset[str]

    def fit(self) -> Fit:
        """Against the target's exact law."""
        return fit(self.texts, models.law_of(models.target_model(self.vocab), self.case.resolved))

    @property
    def accepted_per_round(self) -> tuple[float, float]:
        """Draft tokens accepted by a verification: the mean, and its standard error."""
        each = [a / r for a, r in zip(self.accepted, self.rounds, strict=True)]
        return fmean(each), stdev(each) / len(each) ** 0.5

    def __str__(self) -> str:
        fit, share = self.fit(), sum(self.accepted) / max(1, sum(self.drafted))
        return (
            f"{self.case.name:>24}: {fit.tokens:7d} tokens, {share:.2f} of the draft accepted, "
            f"p = {fit.contexts:.2g} by context ({fit.worst_context:.2g} the worst), "
            f"{fit.uniform:.2g} uniform, {fit.neighbours:.2g} neighbours"
        )


class Bursts:
    """A drafting method that hands over several tokens at a time instead of one.

    The method is asked as before, token by token; a message per token would take
    most of the time of a test.
    """

    def __init__(self, method: Any, length: int) -> None:
        self._method = method
        self._length = length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def propose(self, asks: Sequence[Ask]) -> list[Proposed]:
        """As many levels as a burst holds, of every session that has them."""
        done = list(self._method.propose(asks))
        for _ in range(self._length - 1):
            going = [i for i, so_far in enumerate(done) if _goes_on(so_far, asks[i])]
            if not going:
                break
            more = self._method.propose([_extended(asks[i], done[i]) for i in going])
            for i, next_one in zip(going, more, strict=True):
                done[i] = _joined(done[i], next_one)
        return done


def _goes_on(so_far: Proposed, ask: Ask) -> bool:
    """A chain that may grow, or a tree in the making; not a prompt that is being read."""
    chain = so_far.tree.parents is None and len(so_far.tree) < ask.room
    return chain and not so_far.final and not so_far.fed


def _extended(ask: Ask, so_far: Proposed) -> Ask:
    text = [*ask.text, *so_far.tree.token_ids]
    return replace(ask, text=text, room=ask.room - len(so_far.tree))


def _joined(first: Proposed, second: Proposed) -> Proposed:
    if not len(first.tree):
        return second
    tokens = first.tree.token_ids + second.tree.token_ids
    rows = None if first.tree.q is None else first.tree.q + (second.tree.q or ())
    tree = replace(first.tree, token_ids=tokens, q=rows)
    return replace(second, tree=tree, sources=first.sources + second.sources)


async def start_workers(services: Services, method: Callable[[Any], Any]) -> tuple[Worker, Worker]:
    """The verifier and the drafter of the two-token models."""
    target, tokenizer = models.target_model(services.vocab), models.letters(services.vocab)
    verifier = engine_of(target, tokenizer, table=services.target_table)
    draft = models.draft_model(services.angle, services.vocab)
    drafter = method(engine_of(draft, tokenizer, table=services.draft_table))
    pacing = Ahead(services.burst) if services.ahead else None
    started = await start_verifier_of(verifier, pacing)
    return started, await start_drafter_of(drafter, services.burst)


def engine_of(model: Any, tokenizer: Any, table: bool = False) -> Any:
    """The real engine, or the table of what it would say."""
    if table:
        return TableEngine(models.raw_logits(model), models.CONTEXT, make_bundle(tokenizer, model))
    return NativeEngine.from_model(model, tokenizer, ModelSpec("tiny", threads=1))


async def start_verifier_of(engine: Any, pacing: DraftBudget | None = None) -> Worker:
    """A verifier around an engine."""
    return await start_worker(
        lambda emit: RunningCore(
            engine, emit=emit, worker_id="v1", pacing=pacing, absorb=emit.absorb
        ),
        engine.bundle,
    )


async def start_drafter_of(method: Any, burst: int) -> Worker:
    """A drafter whose one method, called `model`, answers in bursts."""
    drafters = {"model": Bursts(method, burst)}
    return await start_worker(lambda emit: HypothesisCore(drafters, emit=emit, worker_id="d1"))


async def sample(
    cases: Sequence[Case],
    tokens: int,
    length: int,
    services: Services,
    *,
    seed: int = 1,
    method: Callable[[Any], Any] = ModelDrafter,
) -> list[Sample]:
    """About `tokens` output tokens of each case in texts of `length`, all sessions at once.

    `method` makes the drafting method from an engine.
    """
    verifier, drafter = await start_workers(services, method)
    options = {
        "patience": LinkLimits(silence=60.0, engine_stall=120.0),
        "limits": Limits(deadline=3600.0),
        "num_speculative_tokens": services.window,
        "pacing": "eager" if services.ahead else "fixed",
    }
    async with cluster([verifier], [drafter], **options) as running:
        done = await asyncio.gather(
            *(
                _texts(running, case, services.vocab, tokens, length, seed + 10_000 * at)
                for at, case in enumerate(cases)
            )
        )
    return [_gathered(case, services.vocab, runs) for case, runs in zip(cases, done, strict=True)]


async def _texts(
    running: Cluster, case: Case, vocab: int, tokens: int, length: int, seed: int
) -> list[tuple[Text, Generation]]:
    sessions = range(-(-tokens // length))
    return await asyncio.gather(
        *(_run(running, case, vocab, length, seed + n, n) for n in sessions)
    )


async def _run(
    running: Cluster, case: Case, vocab: int, length: int, seed: int, number: int
) -> tuple[Text, Generation]:
    prompt = (number % vocab, (7 * number + 3) % vocab, (5 * number + 1) % vocab)
    # One session of each case tells which rule it was under: the others go faster.
    told = {"include_rounds": number == 0, "rejection_sample_method": case.rule}
    size = {"tokens": prompt, "seed": seed, "max_tokens": length, "ignore_eos": True}
    asked = {**size, **told, **case.sampling, **case.speculation}
    generation = await running.client.generate(**asked)
    # A bad word lies in the output, and begins in what the law looks back on.
    seen = 2 if "bad_words" in case.sampling else 0
    output = generation.token_ids
    return Text((*prompt, *output[:seen]), output[seen:]), generation


def _gathered(case: Case, vocab: int, runs: Sequence[tuple[Text, Generation]]) -> Sample:
    figures = [generation.speculation for _, generation in runs]
    rounds = [stats for _, generation in runs for stats in generation.rounds]
    return Sample(
        case,
        vocab,
        tuple(text for text, _ in runs),
        tuple(figure.num_spec_steps for figure in figures),
        tuple(figure.num_draft_tokens for figure in figures),
        tuple(figure.num_accepted_draft_tokens for figure in figures),
        frozenset(str(stats.rejection_sample_method) for stats in rounds),
    )


BOTH_PACES = pytest.mark.parametrize(
    "services",
    [
        Services(window=5, burst=5, angle=0.2),
        Services(window=8, burst=3, ahead=True, angle=0.2),
    ],
    ids=["in turns", "ahead"],
)
"""For a method whose drafts are to keep the law in either."""
