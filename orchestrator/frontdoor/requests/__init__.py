"""From a request to a SessionSpec, or to an InvalidRequest that names the field."""

from orchestrator.frontdoor.requests.build import build_spec
from orchestrator.frontdoor.requests.inputs import check_counts
from orchestrator.frontdoor.requests.model import ModelDefaults, ServedModel, parse_defaults
from orchestrator.frontdoor.requests.record import dump_spec, load_spec
from orchestrator.frontdoor.requests.request import (
    FITTING,
    ConversationRequest,
    FormatRequest,
    FormatStartRequest,
    GenerationRequest,
    IncomingRequest,
    ListLengths,
    SamplingRequest,
    SpeculationRequest,
    ToolRequest,
)
from orchestrator.frontdoor.requests.scores import (
    IncomingScore,
    ScoreRequest,
    ScoreSpec,
    build_score,
    check_score_counts,
)
from orchestrator.frontdoor.requests.spec import SessionSpec

__all__ = [
    "FITTING",
    "ConversationRequest",
    "FormatRequest",
    "FormatStartRequest",
    "GenerationRequest",
    "IncomingRequest",
    "IncomingScore",
    "ListLengths",
    "ModelDefaults",
    "SamplingRequest",
    "ScoreRequest",
    "ScoreSpec",
    "ServedModel",
    "SessionSpec",
    "SpeculationRequest",
    "ToolRequest",
    "build_score",
    "build_spec",
    "check_counts",
    "check_score_counts",
    "dump_spec",
    "load_spec",
    "parse_defaults",
]
