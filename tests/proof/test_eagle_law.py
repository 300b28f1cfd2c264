"""The text keeps the target's law where a head drafts, and its drafts end by their chances.

Where drafts are matched exactly they end before a token that hardly stays, by what the head says
and by what verdicts said of it before. Drawn drafts never end so.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from services.contract.types import Proposal
from services.drafter.methods.eagle.eagle import EagleDrafter
from services.drafter.methods.graph.tree_growth import default_growth
from tests.fake_engine import TokenCache
from tests.proof.services_kit import BOTH_PACES, Case, Services, sample
from tests.proof.test_services_law import check

TOKENS = 3_000
LENGTH = 100
LEAST = 0.25
CASES = [
    Case("standard", "standard", {"temperature": 1.3}),
    Case("block", "block", {"temperature": 1.3, "top_p": 0.88}),
    Case("standard tree", "standard", {"temperature": 0.7}, {"num_candidates": 3}),
    Case("coupled", "coupled", {"temperature": 0.7}),
    Case("coupled tree", "coupled", {"temperature": 1.3}, {"num_candidates": 3}),
]

pytestmark = pytest.mark.timeout(900)


class AnchoredTokens(TokenCache):
    """Tokens in the place of K/V, whose rows need no states."""

    anchored, stale = 0, False

    def refresh(self) -> int:
        return self.length

    def forget(self, length: int) -> None:
        """There is nothing to forget."""

    def drafts(self, length: int) -> bool:
        return length > 0


class Ending(EagleDrafter):
    """Counts chains that ended by their chance, and of drawn ones those that ended at all."""

    exact = drawn = 0

    def propose(self, asks: Any) -> Any:
        done = super().propose(asks)
        for one, ask in zip(done, asks, strict=True):
            session = self._sessions[ask.key]
            ended = getattr(session, "_ended", (-1, -1))[0] == len(ask.text) + len(one.tree)
            Ending.exact += ended
            drawn = one.tree.proposal is Proposal.SAMPLED and one.tree.parents is None
            Ending.drawn += drawn and len(one.tree) > 0 and (ended or one.final)
        return done


def ending(engine: Any) -> EagleDrafter:
    """A table of logits in the place of a head."""
    engine.layers, engine.state_width = (), 0
    engine.new_cache = partial(AnchoredTokens, engine.budget)
    return Ending(engine, least=LEAST, trees=default_growth)


@BOTH_PACES
async def test_drafts_of_a_head_keep_the_law(services: Services) -> None:
    Ending.exact = Ending.drawn = 0
    check(await sample(CASES, TOKENS, LENGTH, services, method=ending))
    assert Ending.exact > 100
    assert not Ending.drawn
