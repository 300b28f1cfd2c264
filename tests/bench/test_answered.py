"""The target's answers in token ids, for simulations."""

from bench.prompts import BenchPrompt
from research.answered import answered
from services.engine.native import Engine
from tests.models import tiny_model


def test_the_target_s_answers_are_its_greedy_ones_up_to_their_most_tokens():
    engine = Engine.from_model(tiny_model("llama", seed=1), check=False)
    prompts = [BenchPrompt(1, "qa", "", (5, 6, 7)), BenchPrompt(2, "rag", "", (8, 9))]
    short, long = answered(engine, prompts, 3), answered(engine, prompts, 6)
    assert [(one.category, one.prompt) for one in long] == [("qa", (5, 6, 7)), ("rag", (8, 9))]
    assert all(1 <= len(one.answer) <= 3 for one in short)
    for few, many in zip(short, long, strict=True):
        assert few.answer == many.answer[: len(few.answer)]
