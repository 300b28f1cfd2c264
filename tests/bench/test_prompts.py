"""The prompts of a bench."""

from __future__ import annotations

import pytest

from bench.prompts import SPEC_BENCH, BenchPrompt, in_turn, load_prompts
from services.common.errors import StartError


def test_the_set_that_comes_along_mixes_its_categories():
    prompts = load_prompts(SPEC_BENCH, 13)
    assert len({prompt.category for prompt in prompts}) == 13
    assert all(prompt.text for prompt in prompts)


def test_categories_take_turns_and_none_is_lost():
    prompts = [BenchPrompt(number, category, "") for number, category in enumerate("aaabbc")]
    assert [prompt.category for prompt in in_turn(prompts)] == list("abcaba")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"question_id": 1}\n', "line 1"),
        ("no json\n", "line 1"),
        ("", "--num-prompts: 1 are asked for"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path, content, complaint):
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(StartError) as caught:
        load_prompts(path, 1)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StartError, match=r"nowhere\.jsonl cannot be read"):
        load_prompts(tmp_path / "nowhere.jsonl", 1)
