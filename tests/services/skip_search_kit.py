"""A skipping drafter that searches, on a target some of whose sub-layers add nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from services.contract.types import ResolvedSampling
from services.drafter.methods.self_draft.exits import Exit
from services.drafter.methods.self_draft.mask_search import MaskSearch, SearchRules
from services.drafter.methods.self_draft.skip import SkipDrafter
from services.engine.native import NativeEngine, PagedCache
from services.engine.port import Segment
from services.engine.skip_mask import SkipMask
from services.engine.spec import ModelSpec
from tests.models import tiny_model
from tests.services.drafter_kit import Harness, tokens_of

LAYERS = 6
PROMPT = [5, 17, 200, 33, 91, 150, 8]
NEVER = Exit(0.0, adaptive=False)
FREE = SkipMask.of(LAYERS, attention=[2, 3], mlp=[1, 4])
"""Sub-layers that add nothing to the model below."""
BAD = SkipMask.of(LAYERS, attention=[1, 4], mlp=[2, 3])
RULES = SearchRules(share=0.5, guided_every=5)
"""Candidates leave out four of the eight inner sub-layers, as `FREE` does, and `BAD`."""
LONG = ResolvedSampling(max_tokens=250)


@cache
def engine() -> NativeEngine:
    """A random target of six layers; the output projections of `FREE` are zero."""
    torch.set_num_threads(1)
    model = tiny_model("llama", num_hidden_layers=LAYERS)
    with torch.no_grad():
        for layer in FREE.attention:
            model.model.layers[layer].self_attn.o_proj.weight.zero_()
        for layer in FREE.mlp:
            model.model.layers[layer].mlp.down_proj.weight.zero_()
    return NativeEngine.from_model(model, spec=ModelSpec("tiny", kv_capacity_tokens=100_000))


@cache
def own_text(prompt: tuple[int, ...] = tuple(PROMPT), count: int = 200) -> tuple[int, ...]:
    """What the target writes, greedy."""
    target, text = engine(), list(prompt)
    branch = target.new_cache(len(prompt) + count)
    for _ in range(count):
        (rows,) = target.forward([Segment(branch, text[branch.length :])])
        text.append(int(rows[-1].argmax()))
    branch.free()
    return tuple(text[len(prompt) :])


class Searching(Harness):
    """A skipping drafter of the target above that searches from a mask; or not, without rules."""

    def __init__(
        self,
        start: SkipMask = BAD,
        rules: SearchRules | None = RULES,
        seed: int = 0,
        step_tokens: int = 64,
    ) -> None:
        search = MaskSearch(start, rules, seed) if rules else None
        options = {"step_tokens": step_tokens, "search": search}
        super().__init__(engine(), drafter=SkipDrafter(engine(), start, NEVER, **options))

    @property
    def search(self) -> MaskSearch:
        return self.drafter._trials._search

    @property
    def mask(self) -> SkipMask:
        return self.drafter._mask

    def cache_of(self, session: str = "s") -> PagedCache:
        return self.state_of(session).cache

    def draft_all(self, session: str = "s") -> list[int]:
        """Step while something may be drafted, and no more; what was drafted for a session."""
        while self.core._due():
            self.core.step()
        self.core._send()
        return tokens_of(self.drafted(), session)

    def begin(self, committed: int, session: str = "s", **changes: Any) -> None:
        """A session with some of the target's own text, whose draft is there."""
        text = own_text()[:committed]
        self.open(session, PROMPT, output=text, sampling=LONG, **changes)
        self.draft_all()


def read(text: Sequence[int], mask: SkipMask, prompt: int = len(PROMPT)) -> Tensor:
    """The rows of a text read afresh: prompt whole, output skipping."""
    branch = engine().new_cache(len(text))
    (rows,) = engine().forward([Segment(branch, text[:prompt])])
    if len(text) > prompt:
        (output,) = engine().forward([Segment(branch, text[prompt:])], mask)
        rows = torch.cat((rows, output))
    branch.free()
    return rows
