"""An engine whose forwards take given times; see `services.engine.port.Engine`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

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
from services.engine.port import Capability, Segment
from services.engine.synthetic.agreement import mixed
from services.engine.synthetic.costs import Costs
from services.engine.synthetic.pacemaker import Pacemaker
from services.engine.synthetic.spec import SyntheticSpec
from services.engine.synthetic.vocabulary import VOCAB_SIZE, letters, make_tokenizer, signs
from services.engine.synthetic.world import Place, World

SURE = 1000.0
"""Logit of the token that is said, against 0: no temperature makes it unsure.

So large that the others' probabilities are 0: those that are nearly 0 are slow to work with."""
NEVER = -1e4
"""Logit of a token without any chance."""
MAX_CONTEXT = 1 << 17
KV_TOKENS = 1 << 24


class PlaceCache(BudgetedCache):
    """The place after every token, in place of K/V; rules and budget are those of all caches."""

    def __init__(self, budget: KVBudget, reserve: int) -> None:
        super().__init__(budget, reserve)
        self._places: list[Place] = []

    def say(self, tokens: Sequence[int], placed: Placed[Self], world: World) -> list[Place]:
        """The place after each token of a segment that goes where `placed` says."""
        before = self._places
        said: list[Place] = []
        parents = placed.parents
        if parents is None and len(tokens) == 1 and before:
            return [before[-1].then(tokens[0], world)]
        at = before[placed.past - 1] if placed.past else Place()
        for index, token in enumerate(tokens, placed.past):
            if parents is not None:
                parent = parents[index - placed.base]
                place = placed.base - 1 if parent < 0 else placed.base + parent
                new = place - placed.past
                at = said[new] if new >= 0 else before[place] if place >= 0 else Place()
            at = at.then(token, world)
            said.append(at)
        return said

    def append(self, said: Sequence[Place], placed: Placed[Self]) -> None:
        """Hold what `say` gave."""
        self._places += said
        self.commit(placed.count, placed.base, placed.parents)

    def _copy(self, other: PlaceCache, length: int) -> None:
        self._places = other._places[:length]

    def _move(self, base: int, kept: Sequence[int]) -> None:
        self._places[base:] = [self._places[base + node] for node in kept]

    def _shorten(self, length: int) -> None:
        del self._places[length:]
        super()._shorten(length)

    def _hand_over(self, parked: Self) -> int:
        parked._places, self._places = self._places, []
        return self._length

    def _drop(self) -> None:
        self._places = []


class Drawn:
    """One law at every place, of other tokens each time: these follow from the whole text."""

    def __init__(self, law: Sequence[float]) -> None:
        """`law`: chances of as many tokens, MOST_TOKENS at most."""
        self._log = torch.tensor(law, dtype=torch.float64).log().clamp(min=NEVER).float()
        self._signs = torch.tensor(signs())

    def logits(self, places: Sequence[Place], width: int) -> Tensor:
        """Logits [places, width]."""
        firsts = [mixed(one.digest, one.position) % len(self._signs) for one in places]
        turned = torch.tensor(firsts, dtype=torch.long)[:, None] + torch.arange(len(self._log))
        tokens = self._signs[turned % len(self._signs)]
        return torch.full((len(places), width), NEVER).scatter_(
            1, tokens, self._log.expand_as(tokens)
        )


class SyntheticEngine(BudgetedEngine):
    """Sleeps for the time of a forward, then says the token of each row's place, or its law."""

    capabilities = frozenset({Capability.TREES})

    def __init__(
        self,
        spec: SyntheticSpec,
        model_id: str,
        costs: Costs,
        says: Callable[[World, Place], int],
        law: Sequence[float] | None,
        kv_capacity_tokens: int | None,
        pacemaker: Pacemaker | None,
    ) -> None:
        """`says`: the token that comes after a text; `law`: what it is drawn from instead."""
        self.model_id = self.fingerprint = model_id
        self.dtype = "float32"
        self.head_ids: Tensor | None = None
        self.bundle: TokenizerBundle | None = make_tokenizer()
        self.vocab_size, self.max_context_length = VOCAB_SIZE, MAX_CONTEXT
        self._world, self._costs, self._says = World(letters(), spec.agreement()), costs, says
        self._drawn = None if law is None else Drawn(law)
        self.budget = KVBudget(kv_capacity_tokens or KV_TOKENS)
        self._pacemaker = pacemaker or Pacemaker(whole_steps=spec.whole_steps)

    def new_cache(self, reserve: int) -> PlaceCache:
        """An empty cache for at most `reserve` tokens; raises Overloaded without room."""
        return PlaceCache(self.budget, reserve)

    def forward(self, segments: Sequence[Segment]) -> list[Tensor]:
        """As `Engine.forward`: logits [rows, V] per segment, after the time that takes."""
        if not segments:
            return []
        began = self._pacemaker.begin()
        check_apart(segments)
        placed = [place(segment, PlaceCache) for segment in segments]
        for segment, one in zip(segments, placed, strict=True):
            self.check_ranges(segment.token_ids, one.positions)
        places = [
            one.cache.say(segment.token_ids, one, self._world)
            for segment, one in zip(segments, placed, strict=True)
        ]
        wanted = [own[one.logits_from :] for one, own in zip(segments, places, strict=True)]
        logits = self._logits([said for own in wanted for said in own])
        for said, one in zip(places, placed, strict=True):
            one.cache.append(said, one)
        self._pacemaker.until(began + 1e-3 * self._cost_ms(segments, places))
        return list(logits.split_with_sizes([len(own) for own in wanted]))

    def _logits(self, places: Sequence[Place]) -> Tensor:
        """Logits [places, V], sure of one token each unless it is drawn."""
        if self._drawn is not None:
            return self._drawn.logits(places, self.vocab_size)
        said = [self._says(self._world, one) for one in places]
        logits = np.zeros((len(said), self.vocab_size), dtype=np.float32)
        logits[range(len(said)), said] = SURE
        return torch.from_numpy(logits)

    def _cost_ms(self, segments: Sequence[Segment], places: Sequence[Sequence[Place]]) -> float:
        prompts = [
            _prompt_tokens(segment, own) if segment.logits_from else 0
            for segment, own in zip(segments, places, strict=True)
        ]
        rows = [len(own) - held for own, held in zip(places, prompts, strict=True)]
        return self._costs.forward_ms(rows, sum(prompts))


def target_engine(
    spec: SyntheticSpec, kv_capacity_tokens: int | None = None, pacemaker: Pacemaker | None = None
) -> SyntheticEngine:
    """A verifier's engine."""

    def says(world: World, place: Place) -> int:
        return world.target(place.world, place.position)

    costs = spec.verifier.costs()
    law = spec.laws.target if spec.laws else None
    return SyntheticEngine(spec, spec.target_id, costs, says, law, kv_capacity_tokens, pacemaker)


def draft_engine(
    spec: SyntheticSpec, kv_capacity_tokens: int | None = None, pacemaker: Pacemaker | None = None
) -> SyntheticEngine:
    """A drafter's engine."""

    def says(world: World, place: Place) -> int:
        return world.draft(place.world, place.position, place.right)

    costs = spec.drafter.costs()
    law = spec.laws.draft if spec.laws else None
    return SyntheticEngine(spec, spec.draft_id, costs, says, law, kv_capacity_tokens, pacemaker)


def _prompt_tokens(segment: Segment, places: Sequence[Place]) -> int:
    """How many of a segment's tokens only fill the cache: those before the mark."""
    return sum(not place.started for place in places[: segment.logits_from])
