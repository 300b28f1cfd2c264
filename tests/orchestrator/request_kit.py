"""Requests against a small served model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from paceline.v1 import inference_pb2 as pb

from orchestrator.frontdoor.grpc.decoding import incoming
from orchestrator.frontdoor.requests import build_spec, check_counts
from orchestrator.session.served_model import ServedModel
from orchestrator.session.spec import SessionSpec
from orchestrator.steering.rounds import RoundRecord
from services.contract.types import VerifyMode
from tests.orchestrator.text_kit import tokenizer

CONTEXT = 64
TOLD = {"epoch": 2, "batch_size": 2, "drafter": "d1", "verifier": "v1"}
TOLD |= {"draft_ms": 8.5, "verify_ms": 60.0, "queue_ms": 1.25, "round_ms": 63.5}
TOLD |= {"draft_tokens": 4, "accepted_tokens": 2, "emitted_tokens": 3}
"""Of a round, by the names that its record and its message share."""
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
    asked = incoming(pb.GenerateRequest(**fields))
    check_counts(asked.lengths, served)
    return build_spec(asked.read(), tokenizer(), served, lambda: 7, lambda: "drawn")


def round_record(**changed: Any) -> RoundRecord:
    own = {"round": 1, "base_len": 1, "mode": VerifyMode.COUPLED}
    return RoundRecord(**own | {"started_at": 100.0, "ended_at": 100.0635} | TOLD | changed)


NOTHING = round_record(
    **{name: type(told)() for name, told in TOLD.items()},
    base_len=0, mode=None, started_at=0.0, ended_at=0.0,
)  # fmt: skip
"""A round of zeros, for tests that care for a few of its fields."""


def sampled(**params: Any) -> SessionSpec:
    return make(sampling=pb.SamplingParams(**params))


def looked_up(**params: Any) -> SessionSpec:
    """The same where the n-gram drafter makes trees with chances."""
    able = MODEL.capabilities | {"ngram:tree", "ngram:estimates"}
    model = replace(MODEL, capabilities=able)
    return make(model, speculation=pb.SpeculationParams(**params))


def speculated(**params: Any) -> SessionSpec:
    return make(speculation=pb.SpeculationParams(**params))
