"""What is read back of a stored request is what a request may ask for, or a clear refusal."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.v1 import inference_pb2 as pb

from orchestrator.session import spec_record
from orchestrator.session.spec_record import dump_spec, load_spec
from services.contract.errors import DataLoss, StoreError
from tests.orchestrator.request_kit import MODEL, make, sampled

SPEC = sampled(stop=["secret words"], logit_bias={3: 1.5}, logprobs=2, stop_token_ids=[4])
RECORD = json.loads(dump_spec(SPEC))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["GREEDY", 1, 2]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
PLACES = [(name,) for name in RECORD] + [("sampling", name) for name in RECORD["sampling"]]


STORED = (
    b'{"session":"drawn","model":"tiny","sampling":{"temperature":0.5,"top_p":0.75,"top_k":7,'
    b'"min_p":0.125,"frequency_penalty":0.5,"presence_penalty":-0.5,"repetition_penalty":1.25,'
    b'"max_tokens":5,"min_tokens":0,"stop_token_ids":[1,4],"logit_bias":[[3,1.5]],"logprobs":2},'
    b'"seed":7,"mode":"COUPLED","digest":'
    b'"8d5ba6d2bc780a7b460c346103453a79b3512360a2971acf0518500b55a95b94","stop":["x"],'
    b'"include_stop_str":false,"skip_special_tokens":true,"include_rounds":false,'
    b'"ephemeral":false,"method":[],"window_cap":null,"disable_speculation":false,'
    b'"num_candidates":1,"version":1}'
)
"""What the versions before sampling numbers were declared wrote of the request below."""


def test_a_request_is_stored_byte_for_byte_as_earlier_versions_stored_it() -> None:
    numbers = {"temperature": 0.5, "top_p": 0.75, "top_k": 7, "min_p": 0.125}
    numbers |= {"frequency_penalty": 0.5, "presence_penalty": -0.5, "repetition_penalty": 1.25}
    others = {"stop": ["x"], "logit_bias": {3: 1.5}, "logprobs": 2, "stop_token_ids": [4]}
    spec = sampled(**numbers, **others, max_tokens=5, seed=7)
    assert dump_spec(spec) == STORED
    assert load_spec(STORED, spec.prompt) == spec


def changed(place: tuple[str, ...], value: object) -> bytes:
    record = json.loads(json.dumps(RECORD))
    inner = record
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    return json.dumps(record).encode()


def test_the_record_that_is_changed_here_can_be_read() -> None:
    assert load_spec(changed(("seed",), RECORD["seed"]), SPEC.prompt) == SPEC


@given(st.sampled_from(PLACES), JSON)
def test_one_changed_value_is_sound_or_refused(place, value) -> None:
    try:
        spec = load_spec(changed(place, value), SPEC.prompt)
    except (DataLoss, StoreError) as error:
        refusal = str(error)
    else:
        # Whatever was taken can be stored again, and reads the same.
        assert load_spec(dump_spec(spec), spec.prompt) == spec
        refusal = ""
    assert "secret" not in refusal


NAN, INF = float("nan"), float("inf")
SAMPLING = {"temperature": (NAN, INF, "1"), "top_p": (-1,), "max_tokens": (0, 10**12, True)}
SAMPLING |= {"top_k": (0.5,), "stop_token_ids": ([-1],), "logit_bias": ([[1, 1e9]],)}
OTHERS = {"seed": (2**64, -1), "mode": ("HOPE",), "stop": ([""], [7]), "num_candidates": (10**6,)}
OTHERS |= {"ephemeral": ("no",), "colour": ("blue",)}
LIES = {("sampling", name): values for name, values in SAMPLING.items()}
LIES |= {(name,): values for name, values in OTHERS.items()}


@pytest.mark.parametrize(
    ("place", "value"),
    [(place, value) for place, values in LIES.items() for value in values],
    ids=str,
)
def test_what_no_request_can_ask_for_is_data_loss(place, value) -> None:
    with pytest.raises(DataLoss):
        load_spec(changed(place, value), SPEC.prompt)


def test_a_record_nested_without_end_is_data_loss() -> None:
    with pytest.raises(DataLoss):
        load_spec(b"[" * 200_000, ())


def test_what_a_newer_version_wrote_is_for_a_newer_version() -> None:
    with pytest.raises(StoreError, match="newer"):
        load_spec(changed(("version",), 7), ())


def test_a_number_that_is_not_known_here_is_of_a_newer_version() -> None:
    stored = json.loads(changed(("sampling", "top_a"), 0.5))
    with pytest.raises(DataLoss):
        load_spec(json.dumps(stored).encode(), ())
    with pytest.raises(StoreError, match="newer"):
        load_spec(json.dumps(stored | {"version": 3}).encode(), ())


def test_a_number_that_not_every_version_knows_is_stored_only_where_it_does_something(
    monkeypatch,
) -> None:
    monkeypatch.setattr(spec_record, "FIRST_NUMBERS", spec_record.FIRST_NUMBERS - {"min_p"})
    for value, version in ((0.0, 1), (0.25, 3)):
        spec = make(sampling=pb.SamplingParams(min_p=value))
        stored = json.loads(dump_spec(spec))
        assert stored["version"] == version
        assert ("min_p" in stored["sampling"]) == (version == 3)
        assert load_spec(dump_spec(spec), spec.prompt) == spec


LIMITED = make(sampling=pb.SamplingParams(allowed_token_ids=[4, 7], bad_words=["the law", "rides"]))


def test_token_limits_and_priorities_survive_being_stored() -> None:
    for spec, version in ((LIMITED, 3), (make(priority=-7), 5), (replace(LIMITED, priority=2), 5)):
        assert load_spec(dump_spec(spec), spec.prompt) == spec
        assert json.loads(dump_spec(spec))["version"] == version
    assert not {"allowed_token_ids", "bad_words"} & RECORD["sampling"].keys()
    assert "priority" not in RECORD


BROKEN = {
    "allowed_token_ids": ([-1], [1.5], [0] * 4097, 7, "ab"),
    "bad_words": ([[]], [[-1]], [["a"]], [[1] * 514], [[1]] * 257, [3]),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in BROKEN.items() for value in values],
    ids=lambda part: str(part)[:20],
)
def test_a_limit_that_no_request_can_ask_for_is_data_loss(name, value) -> None:
    record = json.loads(dump_spec(LIMITED))
    record["sampling"][name] = value
    with pytest.raises(DataLoss):
        load_spec(json.dumps(record).encode(), LIMITED.prompt)


@pytest.mark.parametrize("value", [101, -101, 0.5, True, "1", None])
def test_a_priority_that_no_request_can_ask_for_is_data_loss(value) -> None:
    record = json.loads(dump_spec(make(priority=1))) | {"priority": value}
    with pytest.raises(DataLoss):
        load_spec(json.dumps(record).encode(), SPEC.prompt)


def test_a_field_that_is_not_known_here_is_of_a_newer_version() -> None:
    record = json.loads(dump_spec(make(priority=1))) | {"colour": "blue"}
    with pytest.raises(StoreError, match="newer"):
        load_spec(json.dumps(record).encode(), SPEC.prompt)


FORMED = make(
    replace(MODEL, structured=True),
    sampling=pb.SamplingParams(choice=pb.Choice(options=["a", "b"])),
)


def test_a_response_format_survives_being_stored() -> None:
    assert load_spec(dump_spec(FORMED), FORMED.prompt) == FORMED


def test_a_version_without_response_formats_is_told_that_it_is_too_old() -> None:
    """Only by a record that has one: all others it reads as before."""
    assert json.loads(dump_spec(FORMED))["version"] == 2
    assert RECORD["version"] == 1
    assert "response_format" not in RECORD["sampling"]


def test_what_is_asked_of_a_prompt_survives_being_stored_where_it_is_asked() -> None:
    asked = pb.SamplingParams(prompt_logprobs=3)
    spec = make(replace(MODEL, scores=True), sampling=asked)
    assert load_spec(dump_spec(spec), spec.prompt) == spec
    assert json.loads(dump_spec(spec))["version"] == 3
    assert "prompt_logprobs" not in RECORD["sampling"]
    broken = json.loads(dump_spec(spec))
    broken["sampling"]["prompt_logprobs"] = 21
    with pytest.raises(DataLoss):
        load_spec(json.dumps(broken).encode(), spec.prompt)


LATER = [
    {"grammar": 'start: "a" | "b"'},
    {"structural_tag": '{"structures": [], "triggers": []}'},
    {"regex": "a+", "response_format_start": pb.FormatStart(text="</think>")},
    {"regex": "a+", "response_format_start": pb.FormatStart(token_ids=pb.TokenIds(ids=[7, 8]))},
]


@pytest.mark.parametrize("asked", LATER, ids=str)
def test_a_later_format_survives_and_an_older_version_leaves_it_alone(asked) -> None:
    spec = make(replace(MODEL, structured=True), sampling=pb.SamplingParams(**asked))
    assert load_spec(dump_spec(spec), spec.prompt) == spec
    assert json.loads(dump_spec(spec))["version"] == 6


@pytest.mark.parametrize(
    "start",
    [
        {},
        "a",
        {"text": "", "token_ids": []},
        {"text": "a", "token_ids": [1]},
        {"text": "a" * 257, "token_ids": []},
        {"text": "", "token_ids": [1] * 33},
        {"text": "", "token_ids": [-1]},
        {"text": 7, "token_ids": []},
    ],
)
def test_a_start_that_no_request_can_ask_for_is_data_loss(start) -> None:
    record = json.loads(dump_spec(FORMED))
    record["sampling"]["response_format"]["start"] = start
    with pytest.raises(DataLoss):
        load_spec(json.dumps(record).encode(), FORMED.prompt)


@pytest.mark.parametrize(
    "broken",
    [
        "a",
        {},
        {"kind": "poem", "source": ["a"]},
        {"kind": "regex", "source": []},
        {"kind": "regex", "source": ["a", "b"]},
        {"kind": "regex", "source": [7]},
        {"kind": "regex", "source": [""]},
        {"kind": "choice", "source": ["a"] * 2000},
        {"kind": "json_schema", "source": ["x" * 70_000]},
    ],
)
def test_a_format_that_no_request_can_ask_for_is_data_loss(broken) -> None:
    record = json.loads(dump_spec(FORMED))
    record["sampling"]["response_format"] = broken
    with pytest.raises(DataLoss):
        load_spec(json.dumps(record).encode(), FORMED.prompt)


def test_several_completions_are_stored_for_versions_that_know_of_them() -> None:
    for one in make(n=3, request_id="r").completions(2**64 - 1):
        assert load_spec(dump_spec(one), one.prompt) == one
        assert json.loads(dump_spec(one))["version"] == 4
    assert not RECORD.keys() & {"n", "index"}


@pytest.mark.parametrize("lies", [{"n": 0}, {"n": 17}, {"index": 3}, {"index": -1}, {"n": "3"}])
def test_a_completion_that_no_request_has_is_data_loss(lies) -> None:
    stored = json.loads(dump_spec(make(n=3).completions(7)[2]))
    with pytest.raises(DataLoss):
        load_spec(json.dumps(stored | lies).encode(), ())


@given(st.integers(0, len(dump_spec(SPEC)) - 1))
def test_a_record_cut_short_is_data_loss(length) -> None:
    with pytest.raises(DataLoss):
        load_spec(dump_spec(SPEC)[:length], ())


def test_a_request_for_chains_is_stored_and_others_are_as_the_last_version_had_them() -> None:
    chains = replace(SPEC, chains=True)
    assert load_spec(dump_spec(chains), SPEC.prompt) == chains
    assert "chains" not in RECORD
