"""The prompts of a bench."""

from collections import Counter

import pytest

from bench.prompts import SPEC_BENCH, BenchPrompt, in_turn, load_prompts, load_set, stratified
from services.contract.errors import StartError


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
        ("", "has no prompt"),
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


def test_the_stratified_set_is_three_of_each_category_and_always_the_same():
    chosen = load_set(SPEC_BENCH, "stratified")
    assert Counter(Counter(prompt.category for prompt in chosen).values()) == {3: 13}
    assert chosen == load_set(SPEC_BENCH, "stratified")
    assert len({prompt.question_id for prompt in chosen}) == 39


def test_a_stratum_is_spread_by_question_id_whatever_the_order_of_the_file():
    prompts = [BenchPrompt(number, "qa", "") for number in (8, 3, 1, 2, 6, 7, 4, 5, 9)]
    assert [prompt.question_id for prompt in stratified(prompts)] == [1, 4, 7]
    assert [prompt.question_id for prompt in stratified(prompts[:2])] == [3, 8]


def test_the_whole_set_is_every_prompt_once():
    every = load_set(SPEC_BENCH, "all")
    assert len({prompt.question_id for prompt in every}) == len(every) == 240


def test_a_number_is_the_first_so_many():
    assert load_set(SPEC_BENCH, "7") == load_prompts(SPEC_BENCH, 7)


@pytest.mark.parametrize("which", ["some", "0", "-3", "2.5", ""])
def test_a_set_of_another_name_is_refused(which):
    with pytest.raises(StartError, match=r"--set: .* is not all, stratified or a number"):
        load_set(SPEC_BENCH, which)


def test_more_prompts_than_there_are_cannot_be_had():
    with pytest.raises(StartError, match="--set: 999 prompts are asked for"):
        load_set(SPEC_BENCH, "999")
