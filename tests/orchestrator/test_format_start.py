"""Where a response format begins: what a request may say, and what the model tells of itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from paceline.v1 import inference_pb2 as pb

from orchestrator.frontdoor.grpc.decoding import read_request
from orchestrator.frontdoor.requests import FormatStartRequest, build_spec
from orchestrator.text import Tokenizer
from services.contract.errors import InvalidRequest
from services.contract.types import RESPONSE_GRAMMAR, RESPONSE_START, FormatMarker
from tests.orchestrator.request_kit import MODEL, make, tokenizer
from tests.orchestrator.text_kit import EOS, bundle, byte_level_backend

SERVED = replace(MODEL, structured=True)
IDS = pb.TokenIds


def thinking(*marks: str, template: str = "") -> Tokenizer:
    """A tokenizer with these added tokens."""
    backend = byte_level_backend()
    backend.add_tokens(list(marks))
    return Tokenizer(bundle(backend, template))


THINKS = thinking("<think>", "</think>")


def started(served=SERVED, own=None, gentle=False, prompt="the law", **start):
    """The start of a resolved request for a regular expression."""
    sampling = pb.SamplingParams(regex="a", response_format_start=pb.FormatStart(**start))
    request = read_request(pb.GenerateRequest(prompt=prompt, sampling=sampling))
    if gentle:
        asked = FormatStartRequest(auto=True, if_thinking=True)
        wanted = replace(request.sampling, response_format_start=asked)
        request = replace(request, sampling=wanted)
    own = own or tokenizer()
    spec = build_spec(request, own, replace(served, vocab_size=own.vocab_size))
    return spec.sampling.response_format.start


def test_a_start_is_kept_as_it_was_given() -> None:
    assert started(text="</think>") == FormatMarker(text="</think>")
    assert started(token_ids=IDS(ids=[7, 8, 7])) == FormatMarker(token_ids=(7, 8, 7))
    assert started(text="x" * 256) == FormatMarker(text="x" * 256)


@pytest.mark.parametrize(
    ("start", "field", "why"),
    [
        ({}, "", "one of text, token_ids and auto"),
        ({"auto": False}, "", "one of text, token_ids and auto"),
        ({"text": ""}, ".text", "1 to 256 characters"),
        ({"text": "x" * 257}, ".text", "257 characters, more than 256"),
        ({"token_ids": IDS()}, ".token_ids", "1 to 32 ids"),
        ({"token_ids": IDS(ids=[7] * 33)}, ".token_ids", "33 ids, more than 32"),
        ({"token_ids": IDS(ids=[2**31])}, ".token_ids", "allowed is 0 to"),
        ({"token_ids": IDS(ids=tokenizer().eos_token_ids)}, ".token_ids", "ends the text"),
        ({"auto": True}, ".auto", "tells of nothing that ends its thoughts"),
    ],
)
def test_a_start_that_cannot_be_is_refused_by_its_name(start, field, why) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        started(**start)
    assert refused.value.field.startswith(f"sampling.response_format_start{field}")


def test_a_start_without_a_format_is_refused() -> None:
    params = pb.SamplingParams(response_format_start=pb.FormatStart(text="</think>"))
    with pytest.raises(InvalidRequest, match="no response format") as refused:
        make(SERVED, sampling=params)
    assert refused.value.field == "sampling.response_format_start"


def test_what_no_verifier_knows_is_refused_and_a_gateway_begins_at_once() -> None:
    older = replace(SERVED, formats=frozenset({RESPONSE_GRAMMAR}))
    with pytest.raises(InvalidRequest, match="no verifier here"):
        started(older, text="a")
    assert started(older, THINKS, gentle=True, prompt="hm <think>") is None
    older = replace(SERVED, formats=frozenset({RESPONSE_START}))
    with pytest.raises(InvalidRequest, match="no verifier here knows") as refused:
        make(older, sampling=pb.SamplingParams(grammar="start: a"))
    assert refused.value.field == "sampling.grammar"


def test_auto_is_what_ends_the_models_thoughts() -> None:
    [end] = THINKS.encode("</think>", add_special_tokens=False)
    assert started(own=THINKS, auto=True) == FormatMarker(token_ids=(end,))
    spelled = thinking(template="{{ x.split('</think>') }}")
    assert started(own=spelled, auto=True) == FormatMarker(text="</think>")


def test_a_gateways_format_begins_behind_thoughts_that_the_prompt_ends_in() -> None:
    [end] = THINKS.encode("</think>", add_special_tokens=False)
    behind = FormatMarker(token_ids=(end,))
    for prompt, wanted in (
        ("the law", None),
        ("hm <think>", behind),
        ("<think>\nso", behind),
        ("<think></think>", None),
        ("<think></think><think>", behind),
    ):
        assert started(own=THINKS, gentle=True, prompt=prompt) == wanted, prompt
    assert started(gentle=True) is None


@pytest.mark.parametrize(
    ("marks", "template", "end"),
    [
        (("[THINK]", "[/THINK]"), "", "[/THINK]"),
        ((), "<|channel|>final<|message|>", "<|channel|>final<|message|>"),
        ((), EOS, None),
    ],
)
def test_what_marks_thoughts_is_told_by_added_tokens_or_the_template(marks, template, end) -> None:
    known = thinking(*marks, template=template).reasoning
    assert (known and known.end) == end


def test_starts_are_part_of_what_was_asked() -> None:
    def digest(**start):
        given = {"response_format_start": pb.FormatStart(**start)} if start else {}
        return make(SERVED, sampling=pb.SamplingParams(regex="a", **given)).digest

    told = [digest(), digest(text="a"), digest(text="b"), digest(token_ids=IDS(ids=[7]))]
    assert len(set(told)) == len(told)
