"""What all trainings share, from one end to the other, shown on a head of a tiny random target."""

from __future__ import annotations

import json

import numpy as np
import pytest

from services.contract.errors import StartError
from services.training.head.train import train_head
from services.training.reporting import Stopped
from services.training.target import read_target
from tests.training.kit import Quiet, StopsAt, card, small, texts_of, weights


def tokens(texts):
    return {number: text.token_ids.tolist() for number, text in texts.items()}


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(finished, tmp_path):
    again = small(finished.target, tmp_path / "again")
    train_head(again, Quiet())
    assert weights(again) == weights(finished)
    assert (again.out / "acceptance.svg").read_bytes() == (
        finished.out / "acceptance.svg"
    ).read_bytes()
    other = small(finished.target, tmp_path / "other", seed=1)
    train_head(other, Quiet())
    assert weights(other) != weights(finished)


@pytest.mark.parametrize(("stage", "done"), [("writing texts", 2000), ("training", 3000)])
def test_a_run_that_was_stopped_goes_on_and_ends_with_the_same_texts(
    finished, tmp_path, stage, done
):
    options = small(finished.target, tmp_path / "out")
    with pytest.raises(Stopped):
        train_head(options, StopsAt(stage, done))
    assert not options.out.exists()
    again = Quiet()
    train_head(options, again)
    name, _, before = again.stages[0]
    assert name == stage
    assert before > done / 4
    used = range(card(finished)["texts"] + card(finished)["held_out_texts"])
    one, other = tokens(texts_of(finished.work_folder)), tokens(texts_of(options.work_folder))
    assert [one[number] for number in used] == [other[number] for number in used]
    assert card(options)["texts"] == card(finished)["texts"]
    assert card(options)["acceptance"] == pytest.approx(card(finished)["acceptance"], abs=0.002)


def test_a_training_that_was_stopped_ends_with_the_same_bytes(finished, tmp_path):
    options = small(finished.target, tmp_path / "out")
    for done in (2000, 4000):
        with pytest.raises(Stopped):
            train_head(options, StopsAt("training", done))
    train_head(options, Quiet())
    assert weights(options) == weights(finished)


def test_held_out_texts_are_those_of_every_fortieth_prompt(finished):
    made = card(finished)
    texts = texts_of(finished.work_folder)
    count = made["texts"] + made["held_out_texts"]
    held = [texts[number] for number in range(count) if number % 40 == 7]
    assert held
    assert made["held_out_texts"] == len(held)
    assert made["held_out_laws"] == sum(len(text.prefixes) for text in held)


def test_a_prompt_of_a_file_that_has_several_answers_is_held_out_with_all_of_them(target, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"Tell me of the number {n}.\n" for n in range(10)))
    options = small(target, tmp_path / "out", prompts=prompts, train=500)
    train_head(options, Quiet())
    made = card(options)
    texts = texts_of(options.work_folder)
    held = [n for n in range(made["texts"] + made["held_out_texts"]) if n % 10 == 7]
    assert len(held) > 1
    assert made["held_out_texts"] == len(held)
    # All answers to one prompt begin with it, and a law is known from its end on only.
    starts = {tuple(texts[n].token_ids[: texts[n].prefixes[0]].tolist()) for n in held}
    assert len(starts) == 1
    assert made["prompts"] == "10 from a file"


def test_a_prompt_of_the_targets_own_that_holds_an_excluded_one_is_dropped(finished, tmp_path):
    target = read_target(finished.target)
    texts = texts_of(finished.work_folder)
    dropped = min(range(7), key=lambda number: len(texts[number].prefixes))
    words = target.tokenizer.decode(target.dialogue.words_of(texts[dropped].token_ids.tolist()))
    exclude = tmp_path / "set.jsonl"
    exclude.write_text(json.dumps({"turns": ["never said", words.upper()[2:-2]]}) + "\n")
    options = small(finished.target, tmp_path / "out", exclude=(exclude,), train=500)
    train_head(options, Quiet())
    made, used = card(options), texts_of(options.work_folder)
    # The series is the shortest beginning that holds enough laws without those of that text.
    laws = np.cumsum([len(used[n].prefixes) * (n != dropped) for n in sorted(used)])
    assert made["laws"] + made["held_out_laws"] == laws[np.argmax(laws >= options.write)]
    assert made["laws"] != card(finished)["laws"]


def test_without_a_text_to_hold_out_it_says_so(finished, tmp_path):
    target = read_target(finished.target)
    texts = texts_of(finished.work_folder)
    words = target.tokenizer.decode(target.dialogue.words_of(texts[7].token_ids.tolist()))
    exclude = tmp_path / "set.jsonl"
    exclude.write_text(json.dumps({"prompt": words}) + "\n")
    options = small(finished.target, tmp_path / "out", exclude=(exclude,), write=512)
    with pytest.raises(StartError, match="--write: too few texts are left"):
        train_head(options, Quiet())


def test_a_work_folder_of_another_plan_is_refused_with_what_differs(finished, tmp_path):
    changed = {"work": finished.work_folder, "learning_rate": 1e-4, "layers": (1,)}
    other = small(finished.target, tmp_path / "out", **changed)
    with pytest.raises(StartError) as caught:
        train_head(other, Quiet())
    told = str(caught.value)
    assert "--learning-rate was 0.005, not 0.0001" in told
    assert "--layers was 0,1,2, not 1" in told
    assert "--write" not in told
    assert "\n" not in told
