"""A gateway's request as one of ours, or an InvalidRequest that names its field.

A proto3 zero is no value where the field has no presence. What the gateway leaves at zero
though zero cannot be meant (`top_p`, `repetition_penalty`) is left out here, too, so that the
model's own default holds; `top_k` 0 keeps all tokens, as it does in vLLM.
"""

from __future__ import annotations

import hashlib
import re
import secrets

from paceline.v1 import inference_pb2 as pb
from smg_grpc_proto.generated import vllm_engine_pb2 as engine

from orchestrator.frontdoor.requests.ranges import MAX_BIASES, MAX_LOGPROBS
from services.contract.errors import InvalidRequest

SESSION_PREFIX = "gateway/"
"""No id that a client of our own API may choose has a slash."""
JSON_OBJECT = '{"type":"object"}'

_LONGEST_NAME = 128 - len(SESSION_PREFIX)
_NAME = re.compile(rf"[A-Za-z0-9\-_.:]{{1,{_LONGEST_NAME}}}")
_MODULUS = 2**64

_TEXT_ALONE = "the model takes text alone"
_ONE_PLACE = "prompts are read by the verifier that generates"
_FORMATS = "json_schema, json_object, regex and choice are served"
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
    "truncate_prompt_tokens": "no prompt is cut",
    "grammar": _FORMATS,
    "structural_tag": _FORMATS,
}
_PARAMS = "sampling_params"
# Our field at the root of what it is called in the gateway's request.
_FIELDS = {
    "sampling": _PARAMS,
    "tokens.ids": "tokenized.input_ids",
    "tokens": "tokenized.input_ids",
    "prompt": "text",
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


def to_request(asked: engine.GenerateRequest) -> pb.GenerateRequest:
    """What it asks for, without its id. Raises InvalidRequest for what cannot be served."""
    _require_served(asked, _OF_REQUEST)
    request = pb.GenerateRequest()
    match asked.WhichOneof("input"):
        case "tokenized":
            request.tokens.ids.extend(asked.tokenized.input_ids)
            request.tokens.SetInParent()
        case "text":
            request.prompt = asked.text
        case _:
            raise InvalidRequest("input", None, "one of tokenized, text")
    if asked.HasField(_PARAMS):
        request.sampling.CopyFrom(_sampling(asked.sampling_params))
    return request


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


def _sampling(asked: engine.SamplingParams) -> pb.SamplingParams:
    _require_served(asked, _OF_SAMPLING, f"{_PARAMS}.")
    if asked.n > 1:
        allowed = "1 (a request has one output; send it again for another)"
        raise InvalidRequest(f"{_PARAMS}.n", asked.n, allowed)
    params = pb.SamplingParams(
        top_k=asked.top_k,
        min_p=asked.min_p,
        frequency_penalty=asked.frequency_penalty,
        presence_penalty=asked.presence_penalty,
        min_tokens=asked.min_tokens,
        stop=asked.stop,
        stop_token_ids=asked.stop_token_ids,
        ignore_eos=asked.ignore_eos,
        skip_special_tokens=asked.skip_special_tokens,
        include_stop_str_in_output=asked.include_stop_str_in_output,
    )
    for name in ("temperature", "max_tokens"):
        if asked.HasField(name):
            setattr(params, name, getattr(asked, name))
    for name in ("top_p", "repetition_penalty"):
        if value := getattr(asked, name):
            setattr(params, name, value)
    if asked.HasField("seed"):
        # A negative one, as its 64 bits.
        params.seed = asked.seed % _MODULUS
    _add_logprobs(params, asked)
    _add_biases(params, asked)
    _add_format(params, asked)
    return params


def _add_logprobs(params: pb.SamplingParams, asked: engine.SamplingParams) -> None:
    if not asked.HasField("logprobs"):
        return
    if asked.logprobs < 0:
        raise InvalidRequest(f"{_PARAMS}.logprobs", asked.logprobs, f"0 to {MAX_LOGPROBS}")
    params.logprobs = asked.logprobs


def _add_biases(params: pb.SamplingParams, asked: engine.SamplingParams) -> None:
    count, allowed = len(asked.logit_bias), f"at most {MAX_BIASES} entries"
    if count > MAX_BIASES:
        raise InvalidRequest(f"{_PARAMS}.logit_bias", f"{count} entries", allowed)
    for token, bias in asked.logit_bias.items():
        if token < 0:
            raise InvalidRequest(f"{_PARAMS}.logit_bias[{token}]", token, "token ids from 0 on")
        params.logit_bias[token] = bias


def _add_format(params: pb.SamplingParams, asked: engine.SamplingParams) -> None:
    match asked.WhichOneof("constraint"):
        case "json_schema":
            params.json_schema = asked.json_schema
        case "json_object" if asked.json_object:
            params.json_schema = JSON_OBJECT
        case "regex":
            params.regex = asked.regex
        case "choice":
            params.choice.options.extend(asked.choice.choices)
            params.choice.SetInParent()
