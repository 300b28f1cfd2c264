"""From a request to a SessionSpec, or to an InvalidRequest that names the field."""

from orchestrator.frontdoor.requests.build import build_spec
from orchestrator.frontdoor.requests.inputs import check_counts
from orchestrator.frontdoor.requests.request import (
    FITTING,
    ConversationRequest,
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

__all__ = [
    "FITTING",
    "ConversationRequest",
    "FormatStartRequest",
    "GenerationRequest",
    "IncomingRequest",
    "IncomingScore",
    "ListLengths",
    "SamplingRequest",
    "ScoreRequest",
    "ScoreSpec",
    "SpeculationRequest",
    "ToolRequest",
    "build_score",
    "build_spec",
    "check_counts",
    "check_score_counts",
]
