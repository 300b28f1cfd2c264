"""Self-speculation in one process: its text is the target's, its figures are what happened."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from services.contract.errors import StartError
from services.engine.native import NativeEngine
from services.engine.port import Segment
from services.engine.skip_mask import SkipMask, whole
from services.engine.spec import ModelSpec
from services.training.skip_mask.figures import MaskStats, total
from services.training.skip_mask.speculation import Rules, Speculation
from tests.models import tiny_model
from tests.training.skip_mask.kit import TickingEngine

PROMPTS = [[5, 6, 7, 8], [9, 10, 11, 12, 13, 14]]
MASK = SkipMask.of(2, attention=[1], mlp=[0])
TOKENS = 12


def tiny_engine() -> NativeEngine:
    spec = ModelSpec("tiny", kv_capacity_tokens=4096)
    return NativeEngine.from_model(tiny_model("llama"), spec=spec)


@pytest.fixture(scope="module")
def engine() -> NativeEngine:
    torch.set_num_threads(1)
    return tiny_engine()


def rules(**changed: Any) -> Rules:
    return Rules(**{"tokens": TOKENS, "max_draft": 4, "threshold": 0.2, **changed})


def greedy(engine: NativeEngine, prompt: list[int], count: int) -> list[int]:
    text = list(prompt)
    for _ in range(count):
        cache = engine.new_cache(len(text))
        text.append(int(engine.forward([Segment(cache, text)])[0][-1].argmax()))
        cache.free()
    return text[len(prompt) :]


class Recorded(Speculation):
    """Keeps what was verified."""

    def _verify(self, start: Any, text: Any, drafted: Any) -> list[int]:
        fresh = super()._verify(start, text, drafted)
        self.texts = {**getattr(self, "texts", {}), tuple(start.text): [*text, *fresh]}
        return fresh


@pytest.mark.parametrize("placement", ["pool", "beside"])
@pytest.mark.parametrize("mask", [whole(2), MASK, SkipMask.of(2, [0, 1], [0, 1])], ids=str)
def test_the_text_is_the_targets_greedy_text_whatever_is_skipped(engine, placement, mask) -> None:
    speculation = Recorded(engine, PROMPTS, rules(placement=placement))
    for _ in range(2):  # what one mask leaves behind does not change the next
        speculation.measure(MASK)
        figures = speculation.measure(mask)
    texts = list(speculation.texts.values())
    for prompt, text in zip(PROMPTS, texts, strict=True):
        assert text == [*prompt, *greedy(engine, prompt, len(text) - len(prompt))]
        assert len(text) - len(prompt) - 1 >= TOKENS
    assert figures.verified == sum(map(len, texts)) - sum(len(p) + 1 for p in PROMPTS)
    assert figures.verified == figures.accepted + figures.rounds


@pytest.mark.parametrize("placement", ["pool", "beside"])
def test_with_nothing_skipped_every_draft_is_accepted(engine: NativeEngine, placement: Any) -> None:
    figures = Speculation(engine, PROMPTS, rules(placement=placement)).measure(whole(2))
    assert figures.acceptance == 1.0
    assert figures.drafted > figures.rounds


def test_a_draft_ends_at_the_threshold_or_at_its_greatest_length(engine: NativeEngine) -> None:
    sure = Speculation(engine, PROMPTS, rules(threshold=0.0)).measure(MASK)
    assert sure.drafted == 4 * sure.rounds
    unsure = Speculation(engine, PROMPTS, rules(threshold=1.0)).measure(MASK)
    assert unsure.drafted == unsure.rounds


def test_times_are_those_of_the_forwards_of_each_kind(engine: NativeEngine) -> None:
    ticking = TickingEngine(engine)
    speculation = Speculation(ticking, PROMPTS, rules(), clock=ticking.clock)  # type: ignore[arg-type]
    read = len(ticking.calls)
    figures = speculation.measure(MASK)
    assert MASK.share == 0.5
    assert figures.draft_seconds == pytest.approx(0.5 * figures.drafted)
    assert figures.verify_seconds == figures.rounds == figures.plain_steps
    assert figures.plain_seconds == figures.plain_steps
    assert len(ticking.calls) == read + figures.drafted + 2 * figures.rounds
    expected = (0.5 * figures.drafted + figures.rounds) / figures.verified
    assert figures.cost == pytest.approx(expected)


def test_the_prompts_are_read_once(engine: NativeEngine) -> None:
    ticking = TickingEngine(engine)
    speculation = Speculation(ticking, PROMPTS, rules())  # type: ignore[arg-type]
    assert [count for count, _ in ticking.calls] == [4, 6]
    speculation.measure(MASK)
    speculation.measure(whole(2))
    assert max(count for count, _ in ticking.calls[2:]) <= 5


def test_a_text_ends_with_its_stop_token() -> None:
    engine = tiny_engine()
    text = greedy(engine, PROMPTS[0], 8)
    engine.eos_token_ids = (text[4],)
    expected = text.index(text[4]) + 1
    speculation = Recorded(engine, PROMPTS[:1], rules(max_draft=8, threshold=0.0))
    figures = speculation.measure(whole(2))
    assert figures.verified == expected - 1


def test_prompts_without_any_answer_are_refused() -> None:
    engine = tiny_engine()
    engine.eos_token_ids = tuple(greedy(engine, prompt, 1)[0] for prompt in PROMPTS)
    with pytest.raises(StartError, match="the target answers none of them"):
        Speculation(engine, PROMPTS, rules())


def test_figures_add_up() -> None:
    one = MaskStats(4, 6, 3, 1, 0.5, 1.0, 1, 1.0)
    both = total([one, one])
    assert both == MaskStats(8, 12, 6, 2, 1.0, 2.0, 2, 2.0)
    assert both.cost == one.cost == pytest.approx(0.375)
    assert both.described()["speedup"] == pytest.approx(2.6667)
    assert both.described()["acceptance"] == 0.5
