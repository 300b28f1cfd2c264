"""Speculation parameters. They change the pace of a session, never its law."""

from __future__ import annotations

from paceline.v1 import inference_pb2 as pb

from orchestrator.requests.checks import require
from orchestrator.requests.model import ServedModel
from orchestrator.requests.ranges import MAX_METHOD_LENGTH, MAX_SPECULATIVE_TOKENS
from services.common.errors import InvalidRequest
from services.common.types import VerifyMode

_SUPPORTED_RULES = (
    pb.REJECTION_SAMPLE_METHOD_UNSPECIFIED,
    pb.REJECTION_SAMPLE_METHOD_AUTO,
    pb.REJECTION_SAMPLE_METHOD_COUPLED,
)
_RULE_PREFIX = "REJECTION_SAMPLE_METHOD_"


def check_speculation(params: pb.SpeculationParams, model: ServedModel) -> None:
    """Raise InvalidRequest naming the first parameter out of its range."""
    _check_method(params.method, model)
    _check_window(params)
    _check_rule(params.rejection_sample_method)
    width = params.num_candidates if params.HasField("num_candidates") else 1
    allowed = "1 (more is not supported yet)"
    require(width == 1, "speculation.num_candidates", width, allowed)


def methods(params: pb.SpeculationParams) -> tuple[str, ...]:
    """Drafting methods in verification order; none = the server's default."""
    return tuple(name.strip() for name in params.method.split(",")) if params.method else ()


def window_cap(params: pb.SpeculationParams) -> int | None:
    """The largest draft window; None = the server's default."""
    return params.num_speculative_tokens if params.HasField("num_speculative_tokens") else None


def resolve_mode(temperature: float) -> VerifyMode:
    """The rule of a session; every one that a request may ask for comes down to these."""
    return VerifyMode.GREEDY if temperature == 0 else VerifyMode.COUPLED


def _check_method(method: str, model: ServedModel) -> None:
    if not method:
        return
    field, value = "speculation.method", method[:MAX_METHOD_LENGTH]
    served = ", ".join(model.methods) or "none (no drafter is served)"
    if "," in method:
        allowed = f"one method (several are not supported yet) of: {served}"
        raise InvalidRequest(field, value, allowed)
    require(method.strip() in model.methods, field, value, f"one of: {served}")


def _check_window(params: pb.SpeculationParams) -> None:
    cap = window_cap(params)
    if cap is not None:
        allowed = f"1 to {MAX_SPECULATIVE_TOKENS}; disable_speculative_decoding turns it off"
        in_range = 1 <= cap <= MAX_SPECULATIVE_TOKENS
        require(in_range, "speculation.num_speculative_tokens", cap, allowed)


def _check_rule(rule: int) -> None:
    known = pb.RejectionSampleMethod.values()
    name = pb.RejectionSampleMethod.Name(rule) if rule in known else str(rule)
    field, value = "speculation.rejection_sample_method", name.removeprefix(_RULE_PREFIX)
    require(rule in _SUPPORTED_RULES, field, value, "AUTO or COUPLED (others not supported yet)")
