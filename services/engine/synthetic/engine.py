"""An engine whose forwards take given times; see `services.engine.port.Engine`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from services.contract.types import TokenizerBundle
from services.engine.budgeted import (
    BudgetedEngine,
    KVBudget,
    check_apart,
    place,
)
from services.engine.port import Capability, Segment
from services.engine.synthetic.cache import PlaceCache
from services.engine.synthetic.costs import Costs
from services.engine.synthetic.pacemaker import Pacemaker
from services.engine.synthetic.spec import SyntheticSpec
from services.engine.synthetic.vocabulary import VOCAB_SIZE, letters, make_tokenizer
from services.engine.synthetic.world import Place, World

SURE = 100.0
"""Logit of the token that is said, against 0: no temperature makes it unsure."""
MAX_CONTEXT = 1 << 17
KV_TOKENS = 1 << 24


class SyntheticEngine(BudgetedEngine):
    """Sleeps for the time of a forward, then says the token of each row's place."""

    capabilities = frozenset({Capability.TREES})

    def __init__(
        self,
        model_id: str,
        world: World,
        costs: Costs,
        says: Callable[[Place], int],
        *,
        kv_capacity_tokens: int | None = None,
        pacemaker: Pacemaker | None = None,
    ) -> None:
        """`says`: the token that comes after a text."""
        self.model_id = self.fingerprint = model_id
        self.dtype = "float32"
        self.head_ids: Tensor | None = None
        self.bundle: TokenizerBundle | None = make_tokenizer()
        self.vocab_size, self.max_context_length = VOCAB_SIZE, MAX_CONTEXT
        self._world, self._costs, self._says = world, costs, says
        self.budget = KVBudget(kv_capacity_tokens or KV_TOKENS)
        self._pacemaker = pacemaker or Pacemaker()

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
        """Logits [places, V], sure of one token each."""
        said = torch.tensor([self._says(place) for place in places], dtype=torch.long)
        logits = torch.zeros(len(said), self.vocab_size)
        return logits.scatter_(1, said[:, None], SURE)

    def _cost_ms(self, segments: Sequence[Segment], places: Sequence[Sequence[Place]]) -> float:
        prompts = [_prompt_tokens(*pair) for pair in zip(segments, places, strict=True)]
        rows = [len(own) - held for own, held in zip(places, prompts, strict=True)]
        return self._costs.forward_ms(rows, sum(prompts))


def target_engine(
    spec: SyntheticSpec,
    kv_capacity_tokens: int | None = None,
    pacemaker: Pacemaker | None = None,
) -> SyntheticEngine:
    """A verifier's engine."""
    world = World(letters(), spec.agreement())
    return SyntheticEngine(
        spec.target_id,
        world,
        spec.verifier.costs(),
        lambda place: world.target(place.world, place.position),
        kv_capacity_tokens=kv_capacity_tokens,
        pacemaker=pacemaker or Pacemaker(whole_steps=spec.whole_steps),
    )


def draft_engine(
    spec: SyntheticSpec,
    kv_capacity_tokens: int | None = None,
    pacemaker: Pacemaker | None = None,
) -> SyntheticEngine:
    """A drafter's engine."""
    world = World(letters(), spec.agreement())
    return SyntheticEngine(
        spec.draft_id,
        world,
        spec.drafter.costs(),
        lambda place: world.draft(place.world, place.position, place.right),
        kv_capacity_tokens=kv_capacity_tokens,
        pacemaker=pacemaker or Pacemaker(whole_steps=spec.whole_steps),
    )


def _prompt_tokens(segment: Segment, places: Sequence[Place]) -> int:
    """How many of a segment's tokens only fill the cache: those before the mark."""
    return sum(not place.started for place in places[: segment.logits_from])
