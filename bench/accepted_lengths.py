"""How many draft tokens each rule accepts on average, from the distributions of two models alone.

    standard    given the chain, sum_i prod_{j<=i} min(1, p/q)    (2211.17192, section 2.3)
    block       given the chain, sum_i p_i, where p_i = min(1, p_{i-1} p/q) is the chance
                that i tokens or more are accepted                (2403.10444, algorithm 2)
    coupled     the tokens drafted with the target's noise that are the target's own sample
                                                                  (2408.07978, section 3)

So the first two need no random number beyond the chain, and are told apart sharply.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

import torch
from torch import Tensor

from services.contract.types import ResolvedSampling, VerifyMode
from services.engine.native import NativeEngine
from services.engine.port import KVCache, Segment
from services.engine.sampling import RowContext, choose
from services.training.texts import Text

RULES = ("standard", "block", "coupled")
Survival = dict[str, list[float]]
"""Per rule, the chance [k] that a block's first 1..k tokens are accepted."""


@dataclass(frozen=True, slots=True)
class Study:
    """How to draft: `length` tokens, `stride` tokens apart, `chains` times at each place.

    `support`: how many tokens a draft distribution is cut to.
    """

    temperature: float = 1.0
    length: int = 8
    stride: int = 8
    chains: int = 4
    support: int = 64


@dataclass(frozen=True, slots=True)
class DraftPoint:
    """A place in a text to draft from: caches of both models without the `last` token."""

    last: int
    target: KVCache
    draft: KVCache
    seed: int


class Pair:
    """Target and draft model."""

    def __init__(self, target: NativeEngine, draft: NativeEngine, study: Study) -> None:
        self._target, self._draft, self._study = target, draft, study
        self._random = torch.Generator().manual_seed(1)
        self._sampling = ResolvedSampling(temperature=study.temperature)

    def survival(self, text: Text) -> Survival:
        """The mean over all places of one text."""
        sampled = [self._judged(place) for place in self._places(text)]
        return {rule: _means([one[rule] for one in sampled]) for rule in RULES}

    def _places(self, text: Text) -> Iterator[list[DraftPoint]]:
        """Groups of places in the answer, from its end on: a cache can only be cut."""
        ids, first = text.token_ids.tolist(), int(text.prefixes[0])
        target, draft = self._filled(self._target, ids), self._filled(self._draft, ids)
        for start in range(len(ids) - 1, first - 1, -self._study.stride):
            target.rollback(start - 1)
            draft.rollback(start - 1)
            room = start + self._study.length
            yield [
                DraftPoint(
                    ids[start - 1], target.fork(room), draft.fork(room), (start << 8) + chain
                )
                for chain in range(2 * self._study.chains)
            ]
        target.free()
        draft.free()

    def _filled(self, engine: NativeEngine, ids: list[int]) -> KVCache:
        cache = engine.new_cache(len(ids))
        engine.forward([Segment(cache, ids, logits_from=len(ids))])
        return cache

    def _judged(self, places: list[DraftPoint]) -> Survival:
        """One half of the chains is sampled, the other one coupled."""
        half = self._study.chains
        tokens, q = self._drafted(places)
        rows = self._verified(places, tokens)
        p = torch.softmax(torch.stack(rows[:half])[:, :-1] / self._study.temperature, dim=-1)
        ratios = p.gather(-1, torch.tensor(tokens[:half])[..., None])[..., 0].double() / q
        coupled = [
            self._coupled(*one)
            for one in zip(places[half:], tokens[half:], rows[half:], strict=True)
        ]
        for place in places:
            place.target.free()
            place.draft.free()
        return {
            "standard": standard_survival(ratios).mean(0).tolist(),
            "block": block_survival(ratios).mean(0).tolist(),
            "coupled": _means(coupled),
        }

    def _drafted(self, places: list[DraftPoint]) -> tuple[list[list[int]], Tensor]:
        """The tokens of every chain, and q [chains, k] of those of the first half."""
        half = self._study.chains
        tokens: list[list[int]] = [[] for _ in places]
        q = []
        for depth in range(self._study.length):
            fed = [own[-1:] or [place.last] for own, place in zip(tokens, places, strict=True)]
            segments = [Segment(place.draft, one) for one, place in zip(fed, places, strict=True)]
            logits = torch.cat(self._draft.forward(segments))
            chosen, probability = self._sampled(logits[:half])
            q.append(probability)
            chosen += choose(logits[half:], [self._row(place, depth) for place in places[half:]])
            for own, token in zip(tokens, chosen, strict=True):
                own.append(token)
        return tokens, torch.stack(q, dim=1)

    def _sampled(self, logits: Tensor) -> tuple[list[int], Tensor]:
        """A token per row from the distribution cut to the likeliest ones; its probability [R]."""
        best = torch.topk(logits / self._study.temperature, self._study.support, dim=-1)
        law = torch.softmax(best.values.double(), dim=-1)
        place = torch.multinomial(law, 1, generator=self._random)
        return best.indices.gather(-1, place)[:, 0].tolist(), law.gather(-1, place)[:, 0]

    def _verified(self, places: list[DraftPoint], tokens: list[list[int]]) -> list[Tensor]:
        segments = [
            Segment(place.target, [place.last, *own])
            for place, own in zip(places, tokens, strict=True)
        ]
        return self._target.forward(segments)

    def _coupled(self, place: DraftPoint, tokens: list[int], logits: Tensor) -> list[float]:
        wanted = choose(logits[:-1], [self._row(place, depth) for depth in range(len(tokens))])
        return list(accumulate([float(a == b) for a, b in zip(tokens, wanted, strict=True)], min))

    def _row(self, place: DraftPoint, depth: int) -> RowContext:
        return RowContext(VerifyMode.COUPLED, self._sampling, place.seed, depth)


def standard_survival(ratios: Tensor) -> Tensor:
    """Chance that the first 1..k tokens are accepted one by one; `ratios` p/q [R, k]."""
    return ratios.clamp(max=1.0).cumprod(dim=-1)


def block_survival(ratios: Tensor) -> Tensor:
    """Chance that 1..k tokens or more are accepted by block verification, [R, k].

    A chance of the first i tokens alone, whatever follows (Sun et al., 2403.10444).
    """
    chance = torch.ones_like(ratios[:, 0])
    chances = []
    for ratio in ratios.unbind(dim=-1):
        chance = (chance * ratio).clamp(max=1.0)
        chances.append(chance)
    return torch.stack(chances, dim=-1)


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(column) for column in zip(*rows, strict=True)]
