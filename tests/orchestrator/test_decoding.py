"""A request of the wire as the front door knows it: nothing of it gets lost, nothing is copied."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from google.protobuf.message import Message
from paceline.v1 import inference_pb2 as pb

from orchestrator.frontdoor import requests
from orchestrator.frontdoor.grpc.decoding import incoming, read_request
from services.contract.sampling import NUMBERS

FORMATS = {"json_schema", "regex", "choice", "grammar", "structural_tag"}
RECORDS: list[tuple[type[Message], type[Any], set[str], set[str]]] = [
    (pb.GenerateRequest, requests.GenerationRequest, set(), set()),
    (
        pb.SamplingParams,
        requests.SamplingRequest,
        FORMATS | NUMBERS.keys(),
        {"response_format", "numbers", "open_ended"},
    ),
    (pb.SpeculationParams, requests.SpeculationRequest, set(), set()),
]


@pytest.mark.parametrize(("message", "record", "elsewhere", "own"), RECORDS)
def test_every_field_of_the_wire_has_one_of_its_name(message, record, elsewhere, own):
    wire = {field.name for field in message.DESCRIPTOR.fields}
    assert {field.name for field in fields(record)} - own == wire - elsewhere


def test_long_lists_are_views_of_the_message():
    message = pb.GenerateRequest(tokens=pb.TokenIds(ids=[1, 2]))
    read = read_request(message)
    message.tokens.ids.append(3)
    assert list(read.tokens) == [1, 2, 3]


def test_its_size_is_that_of_its_message():
    message = pb.GenerateRequest(prompt="a", request_id="r", ephemeral=True)
    assert incoming(message).size == message.ByteSize()


def test_nothing_is_taken_out_of_a_message_before_it_is_read():
    message = pb.GenerateRequest(prompt="a")
    asked = incoming(message)
    message.prompt = "another"
    assert asked.read().prompt == "another"


def test_lengths_are_those_of_every_list():
    sampling = pb.SamplingParams(stop=["a"] * 3, stop_token_ids=[1] * 4, logit_bias={5: 1.0})
    sampling.allowed_token_ids.extend([1] * 5)
    sampling.bad_words.extend(["a"] * 6)
    sampling.choice.options.extend(["a"] * 7)
    message = pb.GenerateRequest(tokens=pb.TokenIds(ids=[1, 2]), sampling=sampling)
    assert incoming(message).lengths == requests.ListLengths(2, 0, 3, 4, 1, 0, 0, 5, 6, 7)
    message.truncate_prompt_tokens = 1
    assert incoming(message).lengths == requests.ListLengths(2, 0, 3, 4, 1, 0, 0, 5, 6, 7, cut=True)
    said = pb.Conversation(messages=[pb.Message()] * 2)
    assert incoming(pb.GenerateRequest(conversation=said)).lengths == requests.ListLengths(
        messages=2
    )
    calling = pb.Message(tool_calls=[pb.ToolCall()] * 3)
    said = pb.Conversation(messages=[calling] * 2, tools=[pb.Tool()] * 4)
    assert incoming(pb.GenerateRequest(conversation=said)).lengths == requests.ListLengths(
        messages=2, tools=4, tool_calls=6
    )
