"""The text keeps the target's law while the skipping drafter's mask changes under way.

A search changes the mask now and then; here every moment without owed drafts does, and
each mask has a law of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor

from services.drafter.methods.self_draft.exits import Exit
from services.drafter.methods.self_draft.skip import SkipDrafter
from services.engine.port import Segment
from services.engine.skip_mask import SkipMask
from tests.proof.services_kit import BOTH_PACES, Services, sample
from tests.proof.test_services_law import check
from tests.proof.test_skip_law import CASES, LENGTH, TOKENS, SkippingTable

MASKS = [SkipMask.of(2, [1]), SkipMask.of(2, [], [1]), SkipMask.of(2, [1], [0])]

pytestmark = pytest.mark.timeout(900)


class ManyLaws(SkippingTable):
    """Every mask is another model."""

    def forward(self, segments: Sequence[Segment], skip: SkipMask | None = None) -> list[Tensor]:
        rows = super().forward(segments, skip)
        if skip is None or skip.empty:
            return rows
        source = torch.Generator().manual_seed(MASKS.index(skip))
        bias = torch.randn(self.vocab_size, generator=source) / 2
        return [each + bias for each in rows]


class Restless(SkipDrafter):
    """Takes another mask whenever no session owes a draft."""

    changes = 0
    masks = cycle(MASKS)

    def idle(self, asks: Any) -> bool:
        Restless.changes += any(True for _ in asks)
        self._change(next(self.masks))
        return False


def restless(engine: Any) -> SkipDrafter:
    return Restless(ManyLaws(engine), MASKS[0], Exit(0.25))  # type: ignore[arg-type]


@BOTH_PACES
async def test_a_mask_that_changes_between_drafts_keeps_the_law(services: Services) -> None:
    Restless.changes = 0
    check(await sample(CASES, 3 * TOKENS, 3 * LENGTH, services, method=restless))
    assert Restless.changes > 10
