"""Written by `make protos`, not by hand: an argument for each field of SamplingParams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict


class SamplingOptions(TypedDict, total=False):
    """How to sample; what is left out has the server's default."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    max_tokens: int
    min_tokens: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    seed: int
    logit_bias: Mapping[int, float]
    logprobs: int
    json_schema: str
    regex: str
    choice: Sequence[str]
    grammar: str
    structural_tag: str
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    response_format_start: str | Sequence[int] | bool
    allowed_token_ids: Sequence[int]
    bad_words: str | Sequence[str]
    prompt_logprobs: int
