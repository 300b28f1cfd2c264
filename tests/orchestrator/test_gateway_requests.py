"""A gateway's request as one of ours: every field, and every refusal by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from paceline.v1 import inference_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2 as engine

from orchestrator.frontdoor.grpc.decoding import read_request
from orchestrator.frontdoor.requests import (
    FormatStartRequest,
    ListLengths,
    SamplingRequest,
    check_counts,
)
from orchestrator.frontdoor.vllm_gateway import request as gateway
from orchestrator.session.served_model import ServedModel
from services.contract.errors import InvalidRequest
from services.contract.sampling import NUMBERS
from services.contract.types import FormatKind, ResponseFormat
from tests.docs.pages import DOCS
from tests.orchestrator.request_kit import CONTEXT, MODEL, build_spec, tokenizer

IDS = [5, 6, 7]
GUIDE = DOCS / "openai.md"


def asked(params: dict[str, Any] | None = None, /, **fields: Any) -> engine.GenerateRequest:
    """A request of three tokens; without `params` it says nothing of sampling."""
    sampling = None if params is None else engine.SamplingParams(**params)
    given = {"tokenized": {"input_ids": IDS}, "request_id": "r"} | fields
    return engine.GenerateRequest(sampling_params=sampling, **given)


def as_smg_asks(**params: Any) -> engine.GenerateRequest:
    """What smg sends where its client says nothing, and `params`."""
    usual = {"top_p": 1.0, "repetition_penalty": 1.0, "n": 1}
    usual |= {"skip_special_tokens": True, "spaces_between_special_tokens": True}
    return asked(usual | params)


def sampled(**params: Any) -> SamplingRequest:
    return gateway.to_request(asked(params)).sampling


def checked(request: engine.GenerateRequest) -> None:
    check_counts(gateway.list_lengths(request), MODEL)
    gateway.to_request(request)


def refusal(request: engine.GenerateRequest) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        checked(request)
    return gateway.in_its_words(caught.value)


def test_token_ids_are_taken_as_they_are_and_a_text_as_a_prompt():
    assert list(gateway.to_request(asked()).tokens) == IDS
    assert gateway.to_request(engine.GenerateRequest(text="the law")).prompt == "the law"
    assert gateway.to_request(asked()).sampling == SamplingRequest(open_ended=True)


def test_lengths_are_those_of_every_list():
    request = asked({"stop": ["a"], "stop_token_ids": [3, 4], "logit_bias": {5: 1.5}})
    assert gateway.list_lengths(request) == ListLengths(len(IDS), 0, 1, 2, 1)


def test_a_request_without_an_input_is_refused():
    assert refusal(engine.GenerateRequest()).field == "input"


def test_an_empty_input_is_refused_by_the_gateways_name_for_it():
    request = gateway.to_request(engine.GenerateRequest(tokenized=engine.TokenizedInput()))
    with pytest.raises(InvalidRequest) as caught:
        build_spec(request, tokenizer(), MODEL)
    assert gateway.in_its_words(caught.value).field == "tokenized.input_ids"


SAME = {"temperature": 0.5, "top_p": 0.5, "top_k": 7, "min_p": 0.25, "frequency_penalty": -0.5}
SAME |= {"presence_penalty": 0.75, "repetition_penalty": 1.25, "max_tokens": 9, "min_tokens": 3}
SAME |= {"ignore_eos": True, "skip_special_tokens": True, "include_stop_str_in_output": True}


@pytest.mark.parametrize(
    ("name", "value"),
    [*SAME.items(), ("temperature", 0.0), ("logprobs", 0), ("logprobs", 4), ("seed", 7)],
)
def test_a_parameter_of_the_same_name_means_the_same(name, value):
    asked = sampled(**{name: value})
    assert (asked.numbers.get(name) if name in NUMBERS else getattr(asked, name)) == value


def test_stops_biases_and_choices_are_copied():
    sampling = sampled(stop=["a", "b"], stop_token_ids=[3, 4], logit_bias={5: 1.5, 6: -100.0})
    assert (list(sampling.stop), list(sampling.stop_token_ids)) == (["a", "b"], [3, 4])
    assert dict(sampling.logit_bias) == {5: 1.5, 6: -100.0}
    choice = engine.ChoiceConstraint(choices=["yes", "no"])
    wanted = sampled(choice=choice).response_format
    assert (wanted.kind, list(wanted.source)) == (FormatKind.CHOICE, ["yes", "no"])


def test_what_smg_leaves_to_the_server_is_what_our_own_api_gives():
    ours = pb.GenerateRequest(sampling=pb.SamplingParams())
    ours.tokens.ids.extend(IDS)
    mine, theirs = (
        build_spec(request, tokenizer(), MODEL, lambda: 7, lambda: "drawn")
        for request in (read_request(ours), gateway.to_request(as_smg_asks()))
    )
    assert theirs == replace(mine, open_ended=True, digest=theirs.digest)


def test_without_a_length_an_output_may_go_on_to_the_end_of_the_context():
    wide = replace(MODEL, max_context_length=4096)

    def most(served: ServedModel, **params: Any) -> int:
        request = gateway.to_request(as_smg_asks(**params))
        return build_spec(request, tokenizer(), served).sampling.max_tokens

    assert most(wide) == 4096 - len(IDS)
    assert most(wide, max_tokens=300) == 300
    assert most(replace(wide, most_tokens=1000)) == 1000


def test_a_retry_finds_a_session_that_had_other_room():
    wide = replace(MODEL, max_context_length=4096)
    request = gateway.to_request(as_smg_asks(seed=3))
    specs = [build_spec(request, tokenizer(), served) for served in (MODEL, wide)]
    assert specs[0].sampling.max_tokens < specs[1].sampling.max_tokens
    assert specs[0].digest == specs[1].digest
    asked_for = gateway.to_request(as_smg_asks(seed=3, max_tokens=specs[0].sampling.max_tokens))
    assert build_spec(asked_for, tokenizer(), MODEL).digest != specs[0].digest


@pytest.mark.parametrize("name", ["temperature", "top_p", "repetition_penalty"])
def test_a_zero_that_cannot_be_meant_leaves_the_default(name):
    assert name not in sampled().numbers
    assert sampled().max_tokens is None


@pytest.mark.parametrize("name", ["top_k", "min_p", "frequency_penalty", "presence_penalty"])
def test_a_zero_that_can_be_meant_wins_over_the_models_default(name):
    assert sampled().numbers[name] == 0


def test_a_length_of_zero_is_no_default():
    assert sampled(max_tokens=0).max_tokens == 0


@pytest.mark.parametrize(("given", "meant"), [(-1, 2**64 - 1), (-(2**31), 2**64 - 2**31), (0, 0)])
def test_a_negative_seed_is_a_seed_of_its_own(given, meant):
    assert sampled(seed=given).seed == meant


def test_a_prompt_is_cut_as_the_gateway_asks():
    long = engine.TokenizedInput(input_ids=[5] * 1000)

    def prompt(most: int, **params: Any) -> int:
        cut = {"truncate_prompt_tokens": most} | params
        request = gateway.to_request(asked(cut, tokenized=long))
        return len(build_spec(request, tokenizer(), MODEL).prompt)

    assert [prompt(3), prompt(CONTEXT - 1, max_tokens=1)] == [3, CONTEXT - 1]
    # What leaves room for the answer, as in vLLM.
    assert [prompt(-1), prompt(-1, max_tokens=20)] == [CONTEXT - 1, CONTEXT - 20]
    assert gateway.list_lengths(asked({"truncate_prompt_tokens": -1})).cut


@pytest.mark.parametrize("most", [0, -2, CONTEXT + 1])
def test_a_cut_that_cannot_be_is_refused_by_the_gateways_name_for_it(most):
    request = gateway.to_request(asked({"truncate_prompt_tokens": most}))
    with pytest.raises(InvalidRequest) as caught:
        build_spec(request, tokenizer(), MODEL)
    named = gateway.in_its_words(caught.value)
    assert named.field == "sampling_params.truncate_prompt_tokens"


@pytest.mark.parametrize("kind", [kind for kind in FormatKind if kind is not FormatKind.CHOICE])
def test_a_format_of_one_text_is_that_text(kind):
    assert sampled(**{kind.value: "a"}).response_format == ResponseFormat(kind, ("a",))


def test_a_json_object_is_a_schema():
    wanted = sampled(json_object=True).response_format
    assert wanted == ResponseFormat(FormatKind.JSON_SCHEMA, ('{"type":"object"}',))
    assert sampled(json_object=False).response_format is None


def test_a_constraint_begins_behind_thoughts_unless_the_gateway_has_written_them_into_it():
    assert sampled(regex="a").response_format_start == FormatStartRequest(
        auto=True, if_thinking=True
    )
    assert sampled(regex="a", grammar_from_first_token=True).response_format_start is None
    assert sampled(json_object=False).response_format_start is None


@pytest.mark.parametrize("one", [0, 1])
def test_without_a_number_there_is_one_output(one):
    assert gateway.to_request(asked({"n": one})).n in (None, 1)
    assert gateway.to_request(asked({"n": 2})).n == 2


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logit_bias": {-3: 1.0}}, "logit_bias[-3]"),
        ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "logit_bias"),
    ],
)
def test_a_parameter_that_cannot_be_served_is_refused_by_its_name(params, field):
    assert refusal(asked(params)).field == f"sampling_params.{field}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mm_inputs", engine.MultimodalInputs()),
        ("extra_mm_inputs", [engine.MultimodalInputs()]),
        ("media_refs", engine.MediaRefs()),
        ("kv_transfer_params", engine.KvTransferParams()),
        ("kv_transfer_params_json", "{}"),
        ("data_parallel_rank", 0),
    ],
)
def test_a_field_that_cannot_be_served_is_refused_by_its_name(name, value):
    assert refusal(asked(**{name: value})).field == name


NO_EFFECT = {
    "sampling_params.spaces_between_special_tokens",
    "tokenized.original_text",
}
"""Text is made by the gateway."""
OF_THE_CALL = {"request_id", "stream"}
"""What `to_request` leaves to its caller."""


def some_value(field: FieldDescriptor) -> Any:
    """A value other than the default, by the field's type."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return {5: 1.5}
    value: Any = {
        field.CPPTYPE_STRING: "a",
        field.CPPTYPE_BOOL: True,
        field.CPPTYPE_FLOAT: 0.5,
        field.CPPTYPE_MESSAGE: field.message_type and field.message_type._concrete_class(),
    }.get(field.cpp_type, 2)
    return [value] if field.is_repeated else value


def every_field() -> Iterator[tuple[str, engine.GenerateRequest, engine.GenerateRequest]]:
    """Each field of a request: a request without it, and the same with it."""
    request, sampling = engine.GenerateRequest.DESCRIPTOR, engine.SamplingParams.DESCRIPTOR
    for field in request.fields:
        if field.name == "text":
            yield field.name, engine.GenerateRequest(), engine.GenerateRequest(text="a")
        elif field.name == "tokenized":
            other = engine.TokenizedInput(input_ids=[1])
            yield field.name, asked(), asked(tokenized=other)
        elif field.name != "sampling_params":
            yield field.name, asked(), asked(**{field.name: some_value(field)})
    for field in sampling.fields:
        value = some_value(field)
        base = {"regex": "a"} if field.name == "grammar_from_first_token" else {}
        yield f"sampling_params.{field.name}", asked(base), asked(base | {field.name: value})
    for field in engine.TokenizedInput.DESCRIPTOR.fields:
        given = {"input_ids": IDS} | {field.name: some_value(field)}
        yield f"tokenized.{field.name}", asked(), asked(tokenized=given)
    choice = engine.ChoiceConstraint.DESCRIPTOR
    for field in choice.fields:
        with_it = engine.ChoiceConstraint(**{field.name: some_value(field)})
        none = asked({"choice": engine.ChoiceConstraint()})
        yield f"sampling_params.choice.{field.name}", none, asked({"choice": with_it})


FIELDS = {name: (without, with_it) for name, without, with_it in every_field()}


def outcome(request: engine.GenerateRequest) -> Any:
    """What it becomes, or the field for which it is refused."""
    try:
        return gateway.to_request(request)
    except InvalidRequest as error:
        return error.field


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_taken_or_refused_by_its_name_or_known_to_change_nothing(name: str):
    """A newer version of the stubs may bring fields that nobody has thought of here."""
    without, with_it = (outcome(request) for request in FIELDS[name])
    if name in NO_EFFECT | OF_THE_CALL:
        assert with_it == without
    elif isinstance(with_it, str):
        assert with_it == name
    else:
        assert with_it != without


def test_the_page_names_every_field_that_is_refused_and_every_one_that_changes_nothing():
    refused = {name for name, (_, with_it) in FIELDS.items() if outcome(with_it) == name}
    assert len(refused) > 5
    page = re.sub(r", `\.", ", `sampling_params.", GUIDE.read_text("utf-8"))
    assert [name for name in refused | NO_EFFECT if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("sampling.top_p", "sampling_params.top_p"),
        ("sampling.stop[3]", "sampling_params.stop[3]"),
        ("tokens", "tokenized.input_ids"),
        ("tokens.ids[2]", "tokenized.input_ids[2]"),
        ("prompt", "text"),
        ("request_id", "request_id"),
    ],
)
def test_errors_name_the_gateways_fields(ours, theirs):
    told = gateway.in_its_words(InvalidRequest(ours, 3, "0 to 1"))
    assert (told.field, str(told)) == (theirs, f"{theirs}: 3 is not allowed; allowed is 0 to 1")


def test_sessions_of_gateways_have_names_that_say_so():
    smg = "chatcmpl-GsmTnHTpMlogZ5jNa49AxZIe-01a20361-fca5-75f1-8d58-8fa45af65906"
    assert gateway.session_id(smg) == f"gateway/{smg}"


def test_no_client_of_our_own_api_can_name_a_gateways_session():
    own = pb.GenerateRequest(request_id=gateway.session_id("r"), prompt="the law")
    with pytest.raises(InvalidRequest, match="request_id"):
        build_spec(read_request(own), tokenizer(), MODEL)


@pytest.mark.parametrize("odd", ["a/b", "ä", "x" * 121, "a b", "\0"])
def test_an_id_that_no_session_can_have_still_names_one(odd):
    name = gateway.session_id(odd)
    assert name == gateway.session_id(odd) != gateway.session_id(odd + "x")
    assert len(name) <= 128
    assert name.isprintable()
    assert name.isascii()


def test_without_an_id_every_request_is_one_of_its_own():
    assert gateway.session_id("") != gateway.session_id("")
