"""An engine whose forwards take given times; see `services.engine.native.Forwards`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from services.contract.types import TokenizerBundle
from services.engine.native.kv import Budgeted, KVBudget, KVCache
from services.engine.native.layout import Layout, Segment
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


class SyntheticEngine(Budgeted):
    """Sleeps for the time of a forward, then says the token of each row's place."""

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
        # No layers: nothing has to be written for a token to count as held.
        self.budget = KVBudget(kv_capacity_tokens or KV_TOKENS, layers=0)
        self._pacemaker = pacemaker or Pacemaker()

    def new_cache(self, reserve: int) -> PlaceCache:
        """An empty cache for at most `reserve` tokens; raises Overloaded without room."""
        return PlaceCache(self.budget, reserve)

    def forward(self, segments: Sequence[Segment]) -> list[Tensor]:
        """As `Engine.forward`: logits [rows, V] per segment, after the time that takes."""
        if not segments:
            return []
        began = self._pacemaker.begin()
        layout = Layout(segments)
        places = [
            _cache(segment).say(segment.token_ids, piece.parents, piece.base, self._world)
            for segment, piece in zip(segments, layout.pieces, strict=True)
        ]
        layout.commit()
        logits = self._logits(layout, places)
        self._pacemaker.until(began + 1e-3 * self._cost_ms(segments, places))
        return list(logits.split_with_sizes(layout.logit_counts))

    def _logits(self, layout: Layout, places: Sequence[Sequence[Place]]) -> Tensor:
        """Logits [wanted rows, V], sure of one token each."""
        rows = [place for own in places for place in own]
        said = torch.tensor([self._says(rows[row]) for row in layout.logit_rows], dtype=torch.long)
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


def _cache(segment: Segment) -> PlaceCache:
    cache: KVCache = segment.cache
    assert isinstance(cache, PlaceCache)
    return cache


def _prompt_tokens(segment: Segment, places: Sequence[Place]) -> int:
    """How many of a segment's tokens only fill the cache: those before the mark."""
    return sum(not place.started for place in places[: segment.logits_from])
