"""An n-gram file for a tiny target: made, stopped and gone on with, and what it says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from services.contract.errors import StartError
from services.engine.ngram_file import FIRSTS, code_of, extend_key, load_ngrams
from services.engine.port import Segment
from services.training.ngrams.laws import learn_laws
from services.training.ngrams.train import train_ngrams
from services.training.options import NgramOptions
from services.training.reporting import Stopped
from services.training.texts import Text
from tests.engine.eagle import kit
from tests.models import tiny_model_folder
from tests.training.kit import Quiet, StopsAt, refused


def small(target: Path, out: Path, **changed: object) -> NgramOptions:
    given = {"write": 1500, "prompt_tokens": 16, "answer_tokens": 24, "batch": 16}
    given |= {"device": "cpu", "command": "paceline train ngrams"}
    return replace(NgramOptions(str(target), out, **given), **changed)


@pytest.fixture(scope="module")
def made(target: Path, tmp_path_factory: pytest.TempPathFactory) -> NgramOptions:
    folder = tmp_path_factory.mktemp("ngrams")
    (folder / "given.txt").write_text("what a person wrote, and wrote again, and again")
    options = small(target, folder / "out.bin", texts=(folder / "given.txt",))
    assert train_ngrams(options, Quiet()) == options.out
    return options


def test_the_file_says_what_the_target_says_after_one_token(made, engine) -> None:
    file = load_ngrams(made.out)
    assert (file.vocab_size, file.tokenizer_fingerprint) == (
        engine.vocab_size,
        engine.bundle.fingerprint,
    )
    from services.training.target import read_target

    header = read_target(made.target).dialogue.prompt(())
    for token in (3, 77, file.vocab_size - 1):
        cache = engine.new_cache(len(header) + 1)
        (logits,) = engine.forward([Segment(cache, [*header, token], logits_from=len(header))])
        cache.free()
        best = torch.topk(torch.softmax(logits[0], -1), FIRSTS)
        start = token * FIRSTS
        assert file.first_ids[start] == int(best.indices[0])
        assert abs(file.first_codes[start] - code_of(float(best.values[0]))) <= 1
    assert any(name.startswith("greedy.") for name in file.weights)
    assert any(name.startswith("coupled.") for name in file.weights)
    assert "paceline train ngrams" in made.out.with_suffix(".md").read_text()


def test_a_run_that_was_stopped_ends_with_the_same_file(made, target, tmp_path) -> None:
    options = replace(made, out=tmp_path / "out.bin")
    with pytest.raises(Stopped):
        train_ngrams(options, StopsAt("writing texts", 700))
    assert not options.out.exists()
    train_ngrams(options, Quiet())
    first, second = load_ngrams(made.out), load_ngrams(options.out)
    assert (first.first_codes, first.weights) == (second.first_codes, second.weights)
    assert [laws.codes for laws in first.laws] == [laws.codes for laws in second.laws]


def test_what_cannot_be_done_is_refused_before_any_work(target, tmp_path) -> None:
    told = refused(train_ngrams, small(target, tmp_path / "o.bin", most_bytes=1000))
    assert "--most-bytes" in told
    told = refused(train_ngrams, small(target, tmp_path / "o.bin", texts=(tmp_path / "none",)))
    assert "--texts" in told


def test_a_mean_law_is_the_mean_of_the_laws_after_equal_tokens() -> None:
    def text(number: int, first: float) -> Text:
        ids = np.array([[7, 8]] * 2, dtype=np.int32)
        logs = np.log(np.array([[first, 1 - first]] * 2)).astype(np.float16)
        tokens = np.array([1, 2, 3 + number], dtype=np.int32)
        return Text(number, tokens, np.array([1, 2], dtype=np.int32), ids, logs)

    ones, twos, *_ = learn_laws([text(0, 0.75), text(1, 0.25)], 50, 10_000)
    law = ones.find(extend_key(0, 1))
    assert sorted(ones.ids[ones.starts[law] : ones.starts[law + 1]]) == [7, 8]
    assert set(ones.codes[ones.starts[law] : ones.starts[law + 1]]) == {code_of(0.5)}
    # After two tokens it says nothing that it does not say after one.
    assert len(twos.keys) == 0


def test_what_tells_least_goes_first() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 20, 400).astype(np.int32)
    places = np.arange(1, 400, dtype=np.int32)
    ids = np.argsort(rng.random((399, 20)), axis=1)[:, :4].astype(np.int32)
    logs = np.log(np.tile([0.6, 0.2, 0.1, 0.05], (399, 1))).astype(np.float16)
    texts = [Text(0, tokens, places, ids, logs)]
    for most in (500, 2000, 8000):
        laws = learn_laws(texts, 50, most)
        size = sum(6 * len(part.keys) + 3 * len(part.ids) for part in laws)
        assert most * 0.7 < size <= most
        assert all(list(part.keys) == sorted(part.keys) for part in laws)


def test_a_draft_model_beside_it_gets_weights_of_its_own(made, tmp_path) -> None:
    """The draft says what the target would: where it has a word, the rest hardly counts."""
    work = made.out.with_name(made.out.name + ".work")
    options = replace(made, out=tmp_path / "beside.bin", work=work, draft=made.target)
    assert train_ngrams(options, Quiet()) == options.out
    alone, beside = load_ngrams(made.out), load_ngrams(options.out)
    assert beside.laws == alone.laws
    assert {name: beside.weights[name] for name in alone.weights} == dict(alone.weights)
    for prefix in ("greedy.draft.", "coupled.draft."):
        said = beside.weights[prefix + "draft"] + 0.5 * beside.weights[prefix + "draft_p"]
        assert said > 0.0
    assert beside.card["draft"] == made.target
    assert made.target in options.out.with_suffix(".md").read_text()


def test_a_head_beside_it_gets_weights_of_its_own(made, tmp_path) -> None:
    width = json.loads((Path(made.target) / "config.json").read_text())["hidden_size"]
    shape = {"hidden_size": width, "num_attention_heads": 4}
    random = kit.make(shape=shape, eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    head = kit.save_specforge(random, tmp_path / "head")
    work = made.out.with_name(made.out.name + ".work")
    options = replace(made, out=tmp_path / "headed.bin", work=work, head=str(head))
    assert train_ngrams(options, Quiet()) == options.out
    alone, headed = load_ngrams(made.out), load_ngrams(options.out)
    assert {name: headed.weights[name] for name in alone.weights} == dict(alone.weights)
    added = {name.rpartition(".")[0] for name in headed.weights.keys() - alone.weights.keys()}
    assert added == {"greedy.head", "coupled.head"}
    # A random head says nothing, and what it does not know is left to the others.
    assert headed.weights["greedy.head.draft_p"] < 1.0


def test_a_draft_model_of_another_tokenizer_is_refused(made, tmp_path) -> None:
    other = tiny_model_folder(tmp_path, "llama", seed=3)
    vocabulary = json.loads((other / "tokenizer.json").read_text())
    vocabulary["added_tokens"][0]["content"] = "<|another|>"
    (other / "tokenizer.json").write_text(json.dumps(vocabulary))
    work = made.out.with_name(made.out.name + ".work")
    options = replace(made, out=tmp_path / "o.bin", work=work, draft=str(other))
    with pytest.raises(StartError, match="has another tokenizer"):
        train_ngrams(options, Quiet())
