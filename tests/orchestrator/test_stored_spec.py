"""What is read back of a stored request is what a request may ask for, or a clear refusal."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.v1 import inference_pb2 as pb

from orchestrator.session import spec_record
from orchestrator.session.spec import SessionSpec
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


def changed(place: tuple[str, ...], value: object, spec: SessionSpec = SPEC) -> bytes:
    """The record of a spec, with another value at one place."""
    record = json.loads(dump_spec(spec))
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


def able(**params: Any) -> SessionSpec:
    """A request that asks for what not every verifier can do."""
    model = replace(MODEL, structured=True, scores=True)
    return make(model, sampling=pb.SamplingParams(**params))


LIMITED = able(allowed_token_ids=[4, 7], bad_words=["the law", "rides"])
SOONER, THIRD = make(priority=-7), make(n=3, request_id="r").completions(2**64 - 1)[2]
FORMED, SCORED = able(choice=pb.Choice(options=["a", "b"])), able(prompt_logprobs=3)
NUMBERS = {"temperature": 0.7, "min_p": 0.1, "frequency_penalty": -1.3, "presence_penalty": 0.7}
NUMBERS |= {"repetition_penalty": 1.3, "seed": 2**64 - 1}
SURVIVE = {
    1: [SPEC, sampled(**NUMBERS, stop=["é"], logit_bias={3: 0.3, 1: -100.0})],
    2: [FORMED],
    3: [LIMITED, SCORED],
    4: make(n=3, request_id="r").completions(2**64 - 1),
    5: [SOONER, replace(LIMITED, priority=2), replace(SPEC, open_ended=True)],
    6: [
        able(grammar='start: "a" | "b"'),
        able(structural_tag='{"structures": [], "triggers": []}'),
        able(regex="a+", response_format_start=pb.FormatStart(text="</think>")),
        able(regex="a+", response_format_start=pb.FormatStart(token_ids=pb.TokenIds(ids=[7, 8]))),
    ],
}


@pytest.mark.parametrize("version", SURVIVE)
def test_a_spec_survives_being_stored_and_versions_that_lack_something_leave_it_alone(version):
    for spec in SURVIVE[version]:
        stored = dump_spec(spec)
        read = load_spec(stored, spec.prompt)
        assert read == spec
        for field in fields(spec):
            assert type(getattr(read, field.name)) is type(getattr(spec, field.name))
        assert json.loads(stored)["version"] == version


NAN, INF = float("nan"), float("inf")
FORMAT, START = ("sampling", "response_format"), ("sampling", "response_format", "start")
LIES: list[tuple[SessionSpec, tuple[str, ...], list[object]]] = [
    (SPEC, ("sampling", "temperature"), [NAN, INF, "1"]),
    (SPEC, ("sampling", "top_p"), [-1]),
    (SPEC, ("sampling", "max_tokens"), [0, 10**12, True]),
    (SPEC, ("sampling", "top_k"), [0.5]),
    (SPEC, ("sampling", "stop_token_ids"), [[-1]]),
    (SPEC, ("sampling", "logit_bias"), [[[1, 1e9]]]),
    (SPEC, ("sampling", "top_a"), [0.5]),
    (SPEC, ("seed",), [2**64, -1]),
    (SPEC, ("mode",), ["HOPE"]),
    (SPEC, ("stop",), [[""], [7]]),
    (SPEC, ("num_candidates",), [10**6]),
    (SPEC, ("ephemeral",), ["no"]),
    (SPEC, ("colour",), ["blue"]),
    (LIMITED, ("sampling", "allowed_token_ids"), [[-1], [1.5], [0] * 4097, 7, "ab"]),
    (LIMITED, ("sampling", "bad_words"), [[[]], [[-1]], [["a"]], [[1] * 514], [[1]] * 257, [3]]),
    (SOONER, ("priority",), [101, -101, 0.5, True, "1", None]),
    (SCORED, ("sampling", "prompt_logprobs"), [21]),
    (THIRD, ("n",), [0, 17, "3"]),
    (THIRD, ("index",), [3, -1]),
    (FORMED, FORMAT, ["a", {}, {"kind": "poem", "source": ["a"]}]),
    (FORMED, FORMAT, [{"kind": "regex", "source": own} for own in ([], ["a", "b"], [7], [""])]),
    (FORMED, FORMAT, [{"kind": "choice", "source": ["a"] * 2000}]),
    (FORMED, FORMAT, [{"kind": "json_schema", "source": ["x" * 70_000]}]),
    (FORMED, START, [{}, "a"]),
    (FORMED, START, [{"text": own, "token_ids": []} for own in ("", "a" * 257, 7)]),
    (FORMED, START, [{"text": "", "token_ids": own} for own in ([1] * 33, [-1])]),
    (FORMED, START, [{"text": "a", "token_ids": [1]}]),
]


@pytest.mark.parametrize(
    ("spec", "place", "value"),
    [
        pytest.param(spec, place, value, id=f"{place}-{str(value)[:40]}")
        for spec, place, values in LIES
        for value in values
    ],
)
def test_what_no_request_can_ask_for_is_data_loss(spec, place, value) -> None:
    with pytest.raises(DataLoss):
        load_spec(changed(place, value, spec), spec.prompt)


@pytest.mark.parametrize("record", [b"", b"{", b"[]", b"{}", b'{"version": 1}', b"[" * 200_000])
def test_a_record_of_another_kind_is_data_loss(record: bytes) -> None:
    with pytest.raises(DataLoss, match="cannot be read"):
        load_spec(record, ())


def test_what_a_newer_version_wrote_is_for_a_newer_version() -> None:
    number = json.loads(changed(("sampling", "top_a"), 0.5)) | {"version": 3}
    for later in (
        changed(("version",), 7),
        json.dumps(number).encode(),
        changed(("colour",), "blue", SOONER),
    ):
        with pytest.raises(StoreError, match="newer"):
            load_spec(later, ())


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


@given(st.integers(0, len(dump_spec(SPEC)) - 1))
def test_a_record_cut_short_is_data_loss(length) -> None:
    with pytest.raises(DataLoss):
        load_spec(dump_spec(SPEC)[:length], ())


def test_a_request_for_chains_is_stored_and_others_are_as_the_last_version_had_them() -> None:
    chains = replace(SPEC, chains=True)
    assert load_spec(dump_spec(chains), SPEC.prompt) == chains
    assert "chains" not in RECORD
