"""A tiny random target, distilled from one end to the other with the real engine."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from services.contract.errors import StartError
from services.engine.native import NativeEngine
from services.engine.native.student import load_student
from services.engine.port import Segment
from services.engine.spec import ModelSpec
from services.training.distill.learning import evaluate
from services.training.distill.run import distill
from services.training.distill.target import read_target
from services.training.reporting import Stopped
from tests.distill.kit import Quiet, StopsAt, small, texts_of


def card(options):
    return json.loads((options.out / "draft.json").read_text())["card"]


def weights(options):
    return (options.out / "draft.safetensors").read_bytes()


def tokens(texts):
    return {number: text.token_ids.tolist() for number, text in texts.items()}


def test_the_trained_drafter_beats_its_untrained_start_on_held_out_texts(finished):
    made = card(finished)
    assert made["acceptance"] > made["untrained"]["acceptance"] + 0.04
    assert made["positions"] >= finished.positions


def test_its_folder_holds_drafter_card_and_plot_and_nothing_half_done(finished):
    names = {path.name for path in finished.out.iterdir()}
    assert names == {"draft.json", "draft.safetensors", "README.md", "acceptance.svg"}
    assert len({path.stat().st_mode for path in finished.out.iterdir()}) == 1
    assert {path.name for path in finished.out.parent.iterdir()} == {"out", "out.work"}
    text = (finished.out / "README.md").read_text()
    assert f"{card(finished)['acceptance']:.3f}" in text
    assert finished.target in text
    assert "paceline distill" in text
    assert "{" not in text
    assert (finished.out / "acceptance.svg").read_text().count("<svg") == 1


@pytest.mark.parametrize("storage", ["int4", "bfloat16"])
def test_the_figures_of_the_card_are_those_of_the_drafter_as_it_is_stored(
    finished, tmp_path, storage
):
    again = small(finished.target, tmp_path / "out", storage=storage, work=finished.work_folder)
    distill(again, Quiet())
    target = read_target(again.target)
    whole = NativeEngine.load(ModelSpec(again.target))._model
    student = load_student(again.out, target.config, whole.get_parameter, torch.float32)
    held = [
        text for number, text in sorted(texts_of(again.work_folder).items()) if number % 40 == 7
    ][: card(again)["held_out_texts"]]
    score = evaluate(student, held)
    assert card(again)["acceptance"] == pytest.approx(score.acceptance, abs=1e-4)
    assert card(again)["greedy"] == pytest.approx(score.greedy, abs=1e-4)
    assert (
        storage != "int4"
        or card(again)["acceptance"] != card(again)["before_storage"]["acceptance"]
    )


def test_the_folder_loads_as_an_engine_that_drafts(finished):
    engine = NativeEngine.load(ModelSpec(str(finished.out)))
    assert engine.head_ids is not None
    [logits] = engine.forward([Segment(engine.new_cache(8), [5, 6, 7])])
    assert logits.shape == (3, finished.head_tokens)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(finished, tmp_path):
    again = small(finished.target, tmp_path / "again")
    distill(again, Quiet())
    assert weights(again) == weights(finished)
    assert (again.out / "acceptance.svg").read_bytes() == (
        finished.out / "acceptance.svg"
    ).read_bytes()
    other = small(finished.target, tmp_path / "other", seed=1)
    distill(other, Quiet())
    assert weights(other) != weights(finished)


@pytest.mark.parametrize(("stage", "done"), [("writing texts", 2000), ("training", 5000)])
def test_a_run_that_was_stopped_goes_on_and_ends_with_the_same_texts(
    finished, tmp_path, stage, done
):
    options = small(finished.target, tmp_path / "out")
    with pytest.raises(Stopped):
        distill(options, StopsAt(stage, done))
    assert not options.out.exists()
    again = Quiet()
    distill(options, again)
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
    for done in (3000, 8000):
        with pytest.raises(Stopped):
            distill(options, StopsAt("training", done))
    distill(options, Quiet())
    assert weights(options) == weights(finished)


def test_held_out_texts_are_those_of_every_fortieth_prompt(finished, target, tmp_path):
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
    distill(options, Quiet())
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
    distill(options, Quiet())
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
        distill(options, Quiet())


def test_a_work_folder_of_another_plan_is_refused_with_what_differs(finished, tmp_path):
    changed = {"work": finished.work_folder, "learning_rate": 1e-4, "layers": (1,)}
    other = small(finished.target, tmp_path / "out", **changed)
    with pytest.raises(StartError) as caught:
        distill(other, Quiet())
    told = str(caught.value)
    assert "--learning-rate was 0.003, not 0.0001" in told
    assert "--layers was 0, not 1" in told
    assert "--write" not in told
    assert "\n" not in told
