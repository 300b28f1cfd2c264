"""Requests against a small served model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from paceline.v1 import inference_pb2 as pb

from orchestrator.frontdoor.grpc.decoding import read_request
from orchestrator.frontdoor.requests import ServedModel, SessionSpec, build_spec
from tests.orchestrator.text_kit import tokenizer

CONTEXT = 64
MODEL = ServedModel(
    name="tiny",
    vocab_size=tokenizer().vocab_size,
    max_context_length=CONTEXT,
    methods=("ngram", "model"),
    default_method="ngram",
    capabilities=frozenset({"model:sampled", "model:tree"}),
    teams=frozenset({frozenset({"ngram", "model"})}),
    limits_tokens=True,
)


def make(served: ServedModel = MODEL, /, **fields: Any) -> SessionSpec:
    """The spec of a request; `prompt="the law"` unless it names an input."""
    if not {"prompt", "tokens", "conversation"} & set(fields):
        fields["prompt"] = "the law"
    request = read_request(pb.GenerateRequest(**fields))
    return build_spec(request, tokenizer(), served, lambda: 7, lambda: "drawn")


def sampled(**params: Any) -> SessionSpec:
    return make(sampling=pb.SamplingParams(**params))


def looked_up(**params: Any) -> SessionSpec:
    """The same where the n-gram drafter makes trees with chances."""
    able = MODEL.capabilities | {"ngram:tree", "ngram:estimates"}
    model = replace(MODEL, capabilities=able)
    return make(model, speculation=pb.SpeculationParams(**params))


def speculated(**params: Any) -> SessionSpec:
    return make(speculation=pb.SpeculationParams(**params))
