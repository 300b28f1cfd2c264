"""A gateway's request as one of ours, or an InvalidRequest that names its field.

A proto3 zero is no value where the field has no presence. A number which is not neutral at zero
counts as left out at zero, so that the model's own default holds; any other zero is meant.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Any

from smg_grpc_proto.generated import vllm_engine_pb2 as engine

from orchestrator.frontdoor.requests import (
    FormatStartRequest,
    GenerationRequest,
    ListLengths,
    SamplingRequest,
)
from services.contract.errors import InvalidRequest
from services.contract.sampling import NUMBERS
from services.contract.sampling_checks import MAX_LOGPROBS
from services.contract.types import FormatKind, ResponseFormat

SESSION_PREFIX = "gateway/"
"""No id that a client of our own API may choose has a slash."""
JSON_OBJECT = '{"type":"object"}'

_LONGEST_NAME = 128 - len(SESSION_PREFIX)
_NAME = re.compile(rf"[A-Za-z0-9\-_.:]{{1,{_LONGEST_NAME}}}")
_MODULUS = 2**64

_TEXT_ALONE = "the model takes text alone"
_ONE_PLACE = "prompts are read by the verifier that generates"
# What cannot be served, and why.
_OF_REQUEST = {
    "mm_inputs": _TEXT_ALONE,
    "extra_mm_inputs": _TEXT_ALONE,
    "media_refs": _TEXT_ALONE,
    "kv_transfer_params": _ONE_PLACE,
    "kv_transfer_params_json": _ONE_PLACE,
    "data_parallel_rank": "the orchestrator chooses the verifier",
}
_OF_SAMPLING = {
    "prompt_logprobs": "output tokens alone have log probabilities",
}
_PARAMS = "sampling_params"
# The gateway's name of each of our root fields.
_FIELDS = {
    "sampling": _PARAMS,
    "tokens.ids": "tokenized.input_ids",
    "tokens": "tokenized.input_ids",
    "prompt": "text",
    "n": f"{_PARAMS}.n",
    "truncate_prompt_tokens": f"{_PARAMS}.truncate_prompt_tokens",
}


def session_id(request_id: str) -> str:
    """The session of a gateway's request.

    An id that is too long or odd for a session goes in by its digest; without one a new id
    is drawn.
    """
    if not request_id:
        return SESSION_PREFIX + secrets.token_hex(16)
    if _NAME.fullmatch(request_id):
        return SESSION_PREFIX + request_id
    return SESSION_PREFIX + hashlib.sha256(request_id.encode()).hexdigest()


def list_lengths(asked: engine.GenerateRequest) -> ListLengths:
    """How many items its lists have."""
    params, ids = asked.sampling_params, asked.tokenized.input_ids
    stops, biases = params.stop_token_ids, params.logit_bias
    cut = params.HasField("truncate_prompt_tokens")
    return ListLengths(
        tokens=len(ids),
        stop=len(params.stop),
        stop_token_ids=len(stops),
        logit_bias=len(biases),
        choice=len(params.choice.choices),
        cut=cut,
    )


def to_request(asked: engine.GenerateRequest) -> GenerationRequest:
    """Our request, without the id. Raises InvalidRequest for unsupported fields."""
    _require_served(asked, _OF_REQUEST)
    kind = asked.WhichOneof("input")
    if kind not in ("tokenized", "text"):
        raise InvalidRequest("input", None, "one of tokenized, text")
    said = asked.HasField(_PARAMS)
    return GenerationRequest(
        prompt=asked.text if kind == "text" else None,
        tokens=asked.tokenized.input_ids if kind == "tokenized" else None,
        sampling=_sampling(asked.sampling_params) if said else SamplingRequest(open_ended=True),
        # A zero is no number: left out.
        n=asked.sampling_params.n or None,
        # -1 is `FITTING` there, too.
        truncate_prompt_tokens=_given(asked.sampling_params, "truncate_prompt_tokens"),
    )


def in_its_words(error: InvalidRequest) -> InvalidRequest:
    """The same, with the field as the gateway calls it."""
    for ours, theirs in _FIELDS.items():
        rest = error.field.removeprefix(ours)
        if error.field.startswith(ours) and (not rest or rest[0] in ".["):
            return InvalidRequest(theirs + rest, error.value, error.allowed)
    return error


def _require_served(
    message: engine.GenerateRequest | engine.SamplingParams, refused: dict[str, str], path: str = ""
) -> None:
    for field, _ in message.ListFields():
        if (why := refused.get(field.name)) is not None:
            raise InvalidRequest(path + field.name, "set", f"left out ({why})")


def _sampling(asked: engine.SamplingParams) -> SamplingRequest:
    _require_served(asked, _OF_SAMPLING, f"{_PARAMS}.")
    return SamplingRequest(
        numbers=_numbers(asked),
        max_tokens=_given(asked, "max_tokens"),
        open_ended=True,
        min_tokens=asked.min_tokens,
        stop=asked.stop,
        stop_token_ids=asked.stop_token_ids,
        ignore_eos=asked.ignore_eos,
        # A negative one, as its 64 bits.
        seed=asked.seed % _MODULUS if asked.HasField("seed") else None,
        logit_bias=_biases(asked),
        logprobs=_logprobs(asked),
        response_format=_format(asked),
        response_format_start=_start(asked),
        include_stop_str_in_output=asked.include_stop_str_in_output,
        skip_special_tokens=asked.skip_special_tokens,
    )


def _numbers(asked: engine.SamplingParams) -> dict[str, float]:
    """The numbers that both know. One without presence is meant at zero where that is neutral."""
    known = asked.DESCRIPTOR.fields_by_name
    given = {name: getattr(asked, name) for name in NUMBERS if name in known}
    return {
        name: value
        for name, value in given.items()
        if (asked.HasField(name) if known[name].has_presence else _meant(name, value))
    }


def _meant(name: str, value: float) -> bool:
    return value != 0 or NUMBERS[name].neutral == 0


def _given(asked: engine.SamplingParams, name: str) -> Any:
    return getattr(asked, name) if asked.HasField(name) else None


def _logprobs(asked: engine.SamplingParams) -> int | None:
    wanted: int | None = _given(asked, "logprobs")
    if wanted is not None and wanted < 0:
        raise InvalidRequest(f"{_PARAMS}.logprobs", wanted, f"0 to {MAX_LOGPROBS}")
    return wanted


def _biases(asked: engine.SamplingParams) -> Mapping[int, float]:
    biases: Mapping[int, float] = asked.logit_bias
    for token in biases:
        if token < 0:
            raise InvalidRequest(f"{_PARAMS}.logit_bias[{token}]", token, "token ids from 0 on")
    return biases


def _format(asked: engine.SamplingParams) -> ResponseFormat | None:
    match asked.WhichOneof("constraint"):
        case "json_object" if asked.json_object:
            return ResponseFormat(FormatKind.JSON_SCHEMA, (JSON_OBJECT,))
        case "choice":
            return ResponseFormat(FormatKind.CHOICE, tuple(asked.choice.choices))
        case "json_schema" | "regex" | "grammar" | "structural_tag" as kind:
            return ResponseFormat(FormatKind(kind), (getattr(asked, kind),))
        case _:
            return None


def _start(asked: engine.SamplingParams) -> FormatStartRequest | None:
    """Behind the model's thoughts, if the prompt ends in them and the format does not."""
    if _format(asked) is None or asked.grammar_from_first_token:
        return None
    return FormatStartRequest(auto=True, if_thinking=True)
