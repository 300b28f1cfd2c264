"""Speculation parameters. They change a session's speed, never its output distribution."""

from __future__ import annotations

from orchestrator.frontdoor.requests.checks import require
from orchestrator.frontdoor.requests.request import SpeculationRequest
from orchestrator.session.ranges import MAX_CANDIDATES, MAX_METHOD_LENGTH, MAX_SPECULATIVE_TOKENS
from orchestrator.session.served_model import ServedModel
from services.contract.errors import InvalidRequest
from services.contract.types import VerifyMode, split_methods

_RULES: dict[str | None, VerifyMode | None] = {
    None: None,
    "UNSPECIFIED": None,
    "AUTO": None,
    "COUPLED": VerifyMode.COUPLED,
    "STANDARD": VerifyMode.STANDARD,
    "BLOCK": VerifyMode.BLOCK,
}
"""By name; None = AUTO."""
_RULE_FIELD = "speculation.rejection_sample_method"


def check_speculation(params: SpeculationRequest, model: ServedModel) -> None:
    """Raise InvalidRequest naming the first parameter out of its range."""
    _check_method(params.method or "", model)
    _check_window(params)
    _check_rule(params.rejection_sample_method)
    _check_candidates(params, model)


def methods(params: SpeculationRequest) -> tuple[str, ...]:
    """Drafting methods in verification order; none = the server's default."""
    return split_methods(params.method or "")


def num_candidates(params: SpeculationRequest) -> int:
    """Candidates at one node of a draft; 1 = chains, and where nothing is drafted."""
    return 1 if params.disable_speculative_decoding else _width(params)


def asked_rule(params: SpeculationRequest) -> VerifyMode | None:
    """The rule that a checked request names; None = AUTO."""
    return _RULES[params.rejection_sample_method]


def drafting_method(params: SpeculationRequest, model: ServedModel) -> str:
    """The method that will draft for the session, as far as is known; empty = none.

    Several methods are joined by commas.
    """
    if params.disable_speculative_decoding:
        return ""
    return _method(params, model)


def check_together(method: str, mode: VerifyMode, num_candidates: int, model: ServedModel) -> None:
    """Raise InvalidRequest where trees without `q` meet a rejection rule.

    SpecInfer (2305.09781) rejects candidates of several drafters in turn, each with its own
    distribution; a draft holds one for each node. N-gram candidates have none.
    """
    if num_candidates == 1 or mode.exact_match:
        return
    if len(split_methods(method)) > 1:
        allowed = f"AUTO or COUPLED: trees of several methods ({method}) are matched exactly"
        raise InvalidRequest(_RULE_FIELD, mode.name, allowed)
    if model.estimates(method):
        allowed = f"AUTO or COUPLED: trees of method {method} are matched exactly"
        raise InvalidRequest(_RULE_FIELD, mode.name, allowed)


def _method(params: SpeculationRequest, model: ServedModel) -> str:
    return ",".join(methods(params)) or model.default_method


def _width(params: SpeculationRequest) -> int:
    return 1 if params.num_candidates is None else params.num_candidates


def _check_method(method: str, model: ServedModel) -> None:
    if not method:
        return
    field, value = "speculation.method", method[:MAX_METHOD_LENGTH]
    served = ", ".join(model.methods) or "none (no drafter is served)"
    names = split_methods(method)
    known = bool(names) and set(names) <= set(model.methods)
    several = "" if len(model.methods) < 2 else ", or several of them joined by commas"
    require(known, field, value, f"one of: {served}{several}")
    if len(names) > 1:
        require(len(set(names)) == len(names), field, value, f"each once, of: {served}")
        require(model.runs_together(names), field, value, _teams(model))


def _teams(model: ServedModel) -> str:
    """Which methods can draft for one session."""
    teams = sorted("+".join(sorted(team)) for team in model.teams)
    return f"methods that one drafter runs together: {', '.join(teams) or 'none'}"


def _check_window(params: SpeculationRequest) -> None:
    if (cap := params.num_speculative_tokens) is not None:
        allowed = f"1 to {MAX_SPECULATIVE_TOKENS}; disable_speculative_decoding turns it off"
        in_range = 1 <= cap <= MAX_SPECULATIVE_TOKENS
        require(in_range, "speculation.num_speculative_tokens", cap, allowed)


def _check_rule(rule: str | None) -> None:
    allowed = "AUTO, COUPLED, STANDARD or BLOCK (temperature 0 is GREEDY by itself)"
    require(rule in _RULES, _RULE_FIELD, rule, allowed)


def _check_candidates(params: SpeculationRequest, model: ServedModel) -> None:
    field, width = "speculation.num_candidates", _width(params)
    require(1 <= width <= MAX_CANDIDATES, field, width, f"1 to {MAX_CANDIDATES}")
    if width == 1:
        return
    if asked_rule(params) is VerifyMode.BLOCK:
        allowed = "STANDARD, COUPLED or AUTO: BLOCK verifies chains, num_candidates 1"
        raise InvalidRequest(_RULE_FIELD, "BLOCK", allowed)
    method = _method(params, model)
    require(model.drafts_trees(method), field, width, _trees(method, model))


def _trees(method: str, model: ServedModel) -> str:
    """What is possible where a method drafts chains only."""
    others = ", ".join(other for other in model.methods if model.drafts_trees(other))
    who = f"method {method!r} drafts chains only" if method else "no drafter is served"
    return f"1 ({who}; trees are drafted by: {others or 'none'})"
