"""The text keeps the target's law where the target drafts with sub-layers left out.

Where drafts are matched exactly they end by the threshold of Draft & Verify: by the tokens
so far, by what was verified before and, with it, by a threshold that moves; a token that
ends a draft is part of it. Drawn drafts never end so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor

from services.contract.types import Proposal
from services.drafter.methods.self_draft.exits import Exit
from services.drafter.methods.self_draft.skip import SkipDrafter
from services.engine.port import Segment
from services.engine.skip_mask import SkipMask
from tests.proof.services_kit import BOTH_PACES, Case, Services, sample
from tests.proof.test_services_law import check

TOKENS = 3_000
LENGTH = 100
CASES = [
    Case("standard", "standard", {"temperature": 1.3}),
    Case("block", "block", {"temperature": 1.3, "top_p": 0.88}),
    Case("standard tree", "standard", {"temperature": 0.7}, {"num_candidates": 3}),
    Case("coupled", "coupled", {"temperature": 0.7}),
]

pytestmark = pytest.mark.timeout(900)


class SkippingTable:
    """A table of logits in the place of a target that skips."""

    num_layers = 2

    def __init__(self, table: Any) -> None:
        self._table = table

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def require_skipping(self) -> None:
        """It can skip."""

    def forward(self, segments: Sequence[Segment], skip: SkipMask | None = None) -> list[Tensor]:
        return self._table.forward(segments) if segments else []


class Ending(SkipDrafter):
    """Counts how many drafts ended by the threshold."""

    exact = drawn = 0

    def propose(self, asks: Any) -> Any:
        done = super().propose(asks)
        for one in done:
            ended = one.final and len(one.tree) > 0
            Ending.drawn += ended and one.tree.proposal is Proposal.SAMPLED
            Ending.exact += ended and one.tree.proposal is not Proposal.SAMPLED
        return done


def ending(engine: Any) -> SkipDrafter:
    return Ending(SkippingTable(engine), SkipMask.of(2, [1]), Exit(0.25))  # type: ignore[arg-type]


@BOTH_PACES
async def test_drafts_of_a_target_that_skips_keep_the_law(services: Services) -> None:
    Ending.exact = Ending.drawn = 0
    check(await sample(CASES, TOKENS, LENGTH, services, method=ending))
    assert Ending.exact > 100
    assert not Ending.drawn
