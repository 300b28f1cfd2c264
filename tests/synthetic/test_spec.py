"""The file that `--synthetic` names."""

from __future__ import annotations

import json

import pytest

from services.contract.errors import StartError
from services.engine.synthetic.spec import read_spec
from services.engine.synthetic.vocabulary import START_ID, VOCAB_SIZE, letters, make_tokenizer

GOOD = {
    "name": "x",
    "verifier": {"plain_ms": 20, "verify_ms": 25},
    "drafter": {"draft_ms": 10},
    "agreement": {"rate": 0.8},
}


def test_models_are_named_synthetic_whatever_the_file_is_called(tmp_path):
    file = tmp_path / "llama.json"
    file.write_text(json.dumps(GOOD))
    spec = read_spec(file)
    assert (spec.target_id, spec.draft_id) == ("synthetic-x", "synthetic-x-draft")


def test_a_list_without_a_rate_goes_on_as_often_right_as_it_was(tmp_path):
    file = tmp_path / "f.json"
    file.write_text(json.dumps(GOOD | {"agreement": {"accepted": [1, 3], "repeat": False}}))
    agreement = read_spec(file).agreement()
    assert (agreement.rate, agreement.repeat) == (0.5, False)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"verifier": {"plain_ms": 20}}, "verifier.verify_ms: Field required"),
        ({"drafter": {"draft_ms": -1}}, "drafter.draft_ms"),
        ({"agreement": {"rate": 1.5}}, "agreement.rate"),
        ({"agreement": {}}, "agreement: a rate, or what each round accepted, is needed"),
        ({"agreement": {"accepted": [9]}}, "9 tokens of a round are not 1 to 6"),
        ({"speed": 1}, "speed: Extra inputs are not permitted"),
        ({"agreement": {"rate": 0.7, "overlap": 0.8}}, "not within 0.008033 and 0.7, as it must"),
        ({"agreement": {"accepted": [1], "overlap": 0.1}}, "an overlap is of a rate"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_in_one_line(tmp_path, change, named):
    file = tmp_path / "f.json"
    file.write_text(json.dumps(GOOD | change))
    with pytest.raises(StartError) as caught:
        read_spec(file)
    assert str(caught.value).startswith(f"--synthetic: {file}: ")
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, "no json", "[1, 2]", "{}"])
def test_a_file_that_is_missing_or_something_else_is_told_in_one_line(tmp_path, content):
    file = tmp_path / "f.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(StartError, match=r"^--synthetic: .*f\.json[^\n]*$"):
        read_spec(file)


def test_the_tokenizer_writes_any_text_and_the_mark_and_reads_letters_back():
    from orchestrator.text import Conversation, Tokenizer

    tokenizer = Tokenizer(make_tokenizer())
    said = Conversation([{"role": "user", "content": "Ängst 7"}])
    ids = tokenizer.encode_conversation(said)
    assert ids[-1] == START_ID
    assert START_ID not in ids[:-1]
    assert tokenizer.decode(ids[:-1]) == "Ängst 7\n"
    assert tokenizer.vocab_size <= VOCAB_SIZE
    assert tokenizer.decode(letters()) == "abcdefghijklmnopqrstuvwxyz "
