"""Look-ahead embeddings for a tiny target, from its own texts to the file that is served."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from services.engine.checkpoint.files import weights_digest
from services.engine.lookahead_file import read_lookahead
from services.engine.native import NativeEngine
from services.engine.spec import ModelSpec
from services.training.lookahead.learner import LookaheadLearner, fresh_embeddings, lookout
from services.training.lookahead.train import right_tokens, train_lookahead
from services.training.options import LookaheadOptions
from services.training.reporting import Stopped
from services.training.texts import LAW_TOKENS, Text, load_texts
from tests.models import tiny_model_folder
from tests.training.kit import Quiet, StopsAt, refused


def small(target: Path, out: Path, **changed: object) -> LookaheadOptions:
    """Options of a training that takes a few seconds."""
    given = {"steps": 2, "write": 2000, "train": 4000, "temperatures": (1.0,), "batch": 16}
    given |= {"prompt_tokens": 24, "answer_tokens": 40, "batch_positions": 128}
    given |= {"dtype": "float32", "device": "cpu", "learning_rate": 0.3}
    given |= {"command": "paceline train lookahead"}
    return replace(LookaheadOptions(str(target), out, **given), **changed)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target that always chooses among sixteen tokens, more or less, and in varying order."""
    return tiny_model_folder(tmp_path_factory.mktemp("ahead"), "gpt2", change=_prefer_sixteen)


@torch.no_grad()
def _prefer_sixteen(model) -> None:
    direction = torch.randn(64, generator=torch.Generator().manual_seed(0))
    model.transformer.ln_f.bias.copy_(direction)
    model.lm_head.weight.mul_(0.4)
    model.lm_head.weight[20:36] += 0.3 * direction


@pytest.fixture(scope="module")
def trained(target: Path, tmp_path_factory: pytest.TempPathFactory) -> LookaheadOptions:
    options = small(target, tmp_path_factory.mktemp("lookahead") / "out.safetensors")
    assert train_lookahead(options, Quiet()) == options.out
    return options


def test_trained_embeddings_beat_their_untrained_start_at_every_step(trained) -> None:
    """Over all texts of the run; the card tells of the few that were held out."""
    model = NativeEngine.load(ModelSpec(trained.target)).model
    texts = sorted(load_texts(trained.work_folder / "texts"), key=lambda text: text.number)
    learnt_from = [text for text in texts if text.number % 40 != 7]
    start = LookaheadLearner(model, fresh_embeddings(model, learnt_from, 2, trained.seed))
    after = LookaheadLearner(model, read_lookahead(trained.out).embeddings)
    for learnt, fresh in zip(after.scores(texts), start.scores(texts), strict=True):
        assert learnt.positions > 500
        assert learnt.acceptance > fresh.acceptance + 0.01


def test_the_figures_of_the_card_are_those_of_held_out_texts_with_what_is_stored(trained) -> None:
    card = read_lookahead(trained.out).card
    model = NativeEngine.load(ModelSpec(trained.target)).model
    learner = LookaheadLearner(model, read_lookahead(trained.out).embeddings)
    texts = list(load_texts(trained.work_folder / "texts"))
    count = card["texts"] + card["held_out_texts"]
    held = [text for text in texts if text.number % 40 == 7 and text.number < count]
    assert len(held) == card["held_out_texts"]
    scores = learner.scores(held)
    assert card["acceptance"] == pytest.approx([s.acceptance for s in scores], abs=1e-4)
    assert card["greedy"] == pytest.approx([s.greedy for s in scores], abs=1e-4)
    assert card["positions"] >= trained.train


def test_the_file_names_its_base_and_its_card_is_told_beside_it(trained) -> None:
    made = read_lookahead(trained.out)
    assert made.embeddings.shape == (2, 64)
    assert made.base == trained.target
    assert made.base_weights == weights_digest(trained.target)
    assert made.card["laws"] + made.card["held_out_laws"] >= trained.write
    names = {path.name for path in trained.out.parent.iterdir()}
    assert names == {"out.safetensors", "out.md", "out.svg", "out.safetensors.work"}
    text = trained.out.with_suffix(".md").read_text()
    assert f"| 2 | {made.card['acceptance'][0]:.3f} |" in text
    assert f"{right_tokens(made.card['greedy']):.2f} in greedy decoding" in text
    assert "{" not in text


def test_the_file_serves_in_an_engine_of_its_target(trained) -> None:
    engine = NativeEngine.load(ModelSpec(trained.target))
    engine.give_soft_tokens(read_lookahead(trained.out).embeddings)
    assert len(engine.soft_ids) == 2


def test_the_same_seed_gives_the_same_bytes_even_after_stops_and_another_seed_does_not(
    trained, target, tmp_path
) -> None:
    for stop in (1000, 2500):
        with pytest.raises(Stopped):
            train_lookahead(
                small(target, tmp_path / "again.safetensors"), StopsAt("training", stop)
            )
    again = small(target, tmp_path / "again.safetensors")
    train_lookahead(again, Quiet())
    first, second = read_lookahead(trained.out), read_lookahead(again.out)
    assert torch.equal(first.embeddings, second.embeddings)
    # The curve is measured at the same places, too.
    assert first.card["curve"] == second.card["curve"]
    texts = trained.work_folder / "texts"
    other = small(target, tmp_path / "other.safetensors", texts=(texts,), seed=1, train=300)
    train_lookahead(other, Quiet())
    assert not torch.equal(read_lookahead(other.out).embeddings, first.embeddings)


def test_texts_of_an_earlier_run_stand_in_for_writing(trained, target, tmp_path) -> None:
    texts = trained.work_folder / "texts"
    told = Quiet()
    options = small(target, tmp_path / "out.safetensors", texts=(texts,), train=300)
    train_lookahead(options, told)
    assert [name for name, _, _ in told.stages] == ["training"]
    assert "written by the target for an earlier run" in options.out.with_suffix(".md").read_text()


def _text(prefixes: list[int], length: int) -> Text:
    laws = np.tile(np.array(prefixes, dtype=np.int32)[:, None], (1, LAW_TOKENS))
    ids = np.arange(length, dtype=np.int32)
    return Text(3, ids, np.array(prefixes, np.int32), laws, np.zeros_like(laws, np.float16))


@pytest.mark.parametrize("seed", range(5))
def test_a_place_is_looked_from_only_where_every_law_ahead_is_known(seed: int) -> None:
    """Laws after 4..9 and 14..20 tokens; a place at t with 3 steps needs t+1 .. t+3."""
    prefixes = [*range(4, 10), *range(14, 21)]
    found = lookout(_text(prefixes, 21), 3, seed)
    places = found.places.tolist()
    assert set(places) <= {3, 4, 5, 6, 13, 14, 15, 16, 17}
    assert len(set(places)) == len(prefixes) // 3
    # Each law of this text holds the number of tokens before it.
    assert found.token_ids[:, 0].tolist() == [t + j for t in places for j in (1, 2, 3)]
    assert found.text == list(range(places[-1]))


def test_a_text_too_short_to_look_ahead_in_is_left_out() -> None:
    assert lookout(_text([2, 3], 4), 3, 0) is None


def refusal(options: LookaheadOptions) -> str:
    return refused(train_lookahead, options)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"steps": 0}, r"--steps: 0 is not allowed; allowed is 1\.\.32"),
        ({"steps": 33}, "--steps: 33 is not allowed"),
        ({"learning_rate": 0.0}, "--learning-rate: 0.0 is not allowed"),
        ({"train": 0}, "--train: 0 is not allowed"),
        ({"write": 100}, "--write: 100 distributions may be too few"),
        ({"texts": (Path("nowhere"),)}, "--texts: nowhere has no texts"),
        ({"texts": (Path("t"),), "prompts": Path("p")}, "--texts: they are written already"),
        ({"prompt_tokens": 600, "write": 10_000}, "--prompt-tokens: 600 leave no room"),
    ],
)
def test_an_option_that_makes_no_sense_is_named_before_any_work(target, tmp_path, changed, told):
    assert re.match(told, refusal(small(target, tmp_path / "out.safetensors", **changed)))


def test_an_out_that_is_there_or_no_safetensors_file_is_refused(trained, target, tmp_path) -> None:
    assert "exists already" in refusal(trained)
    assert "no name of a .safetensors file" in refusal(small(target, tmp_path / "out"))


def test_texts_of_another_target_are_refused(trained, tmp_path, tmp_path_factory) -> None:
    other = tiny_model_folder(tmp_path_factory.mktemp("other"), seed=5)
    texts = trained.work_folder / "texts"
    line = refusal(small(other, tmp_path / "out.safetensors", texts=(texts,)))
    assert re.match("--texts: those of .* were written by another target", line)
