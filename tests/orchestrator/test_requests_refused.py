"""Bad input is refused by its field, its value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from paceline.v1 import inference_pb2 as pb

from orchestrator.frontdoor.grpc.decoding import read_request
from orchestrator.frontdoor.requests import build_spec
from orchestrator.text import Tokenizer
from services.contract.errors import InvalidRequest
from services.contract.sampling import NUMBERS as DECLARED
from tests.orchestrator.request_kit import CONTEXT, MODEL, looked_up, make, sampled, speculated
from tests.orchestrator.text_kit import bundle, byte_level_backend, tokenizer

LAST_ID = MODEL.vocab_size - 1
MIB4 = 4 * 1024 * 1024
Maker = Callable[..., object]


def talk(*messages: tuple[str, str]) -> dict[str, Any]:
    said = [pb.Message(role=role, content=content) for role, content in messages]
    return {"conversation": pb.Conversation(messages=said)}


def ids(*tokens: int) -> dict[str, Any]:
    return {"tokens": pb.TokenIds(ids=tokens)}


HEAT, RULES = "0 to 10000", "AUTO, COUPLED, STANDARD or BLOCK"
UNKEPT, ROLES = "no verifier here keeps", "1 to 64 characters"
IDS = f"token ids 0 to {LAST_ID}"
NO_TREES_OF_BOTH = "AUTO or COUPLED: trees of several methods (ngram,model) are matched exactly"
NO_TREES_OF_NGRAM = "AUTO or COUPLED: trees of method ngram are matched exactly"
CHAINS_ONLY = "1 (method 'ngram' drafts chains only; trees are drafted by: model)"
RULE, NAMED, TREES = "rejection_sample_method", "REJECTION_SAMPLE_METHOD_", {"num_candidates": 2}
BOTH, BLOCK = {"method": "ngram,model"}, {"method": "model", RULE: NAMED + "BLOCK"}
MANY_BIASES = {"logit_bias": dict.fromkeys(range(1025), 1.0)}
NUMBERS = {
    "temperature": (HEAT, math.nan, -0.1, math.inf, -1e-30),
    "top_p": ("0 to 1", 1.1, -0.5, math.nan),
    "min_p": ("0 to 1", 1.5, math.nan),
    "logprobs": ("0 to 20", 21),
    "prompt_logprobs": ("0 to 20", 21),
    "frequency_penalty": ("-2 to 2", 3.0, math.nan),
    "presence_penalty": ("-2 to 2", -2.5),
    "repetition_penalty": ("0.0001 to 2", 0.0, 1e-30, 2.1),
}
PARTS: dict[Maker, str] = dict.fromkeys((speculated, looked_up), "speculation.")
PARTS |= {make: "", sampled: "sampling."}
CASES: list[tuple[Maker, dict[str, Any], str, object, str]] = [
    # input
    (make, {"prompt": ""}, "prompt", "0 bytes", f"1 to {MIB4} bytes"),
    (make, {"prompt": "x" * (MIB4 + 1)}, "prompt", f"{MIB4 + 1} bytes", f"1 to {MIB4} bytes"),
    (make, {"prompt": "é" * (MIB4 // 2 + 1)}, "prompt", f"{MIB4 + 2} bytes", f"1 to {MIB4} bytes"),
    (make, {"prompt": "q " * 40}, "prompt", "80 tokens", "1 to 63 tokens"),
    (make, ids(), "tokens", "0 tokens", "1 to 63 tokens"),
    (make, ids(*[5] * CONTEXT), "tokens", "64 tokens", "1 to 63 tokens"),
    (make, ids(3, LAST_ID + 1), "tokens.ids[1]", LAST_ID + 1, f"0 to {LAST_ID}"),
    (make, ids(2**32 - 1), "tokens.ids[0]", 2**32 - 1, f"0 to {LAST_ID}"),
    (make, talk(), "conversation.messages", "0 messages", "1 to 1024"),
    (make, talk(*[("user", "x")] * 1025), "conversation.messages", "1025 messages", "1 to 1024"),
    (make, talk(("r" * 65, "x")), "conversation.messages[0].role", "r" * 64, ROLES),
    (make, talk(("user", "x"), ("", "x")), "conversation.messages[1].role", "", ROLES),
    (make, talk(("user", "x" * (MIB4 + 1))), "conversation", f"{MIB4 + 1} bytes", f"{MIB4} bytes"),
    (make, talk(*[("user", "a")] * 2), "conversation", "2 messages (user, user)", "alternate"),
    (make, talk(("user", "x y " * 40)), "conversation", None, "1 to 63 tokens"),
    # names
    (make, {"model": "other"}, "model", "other", "'tiny'"),
    (make, {"model": ""}, "model", "", "'tiny'"),
    (make, {"request_id": ""}, "request_id", "", "1 to 128 letters, digits and -_.:"),
    (make, {"request_id": "a b"}, "request_id", "a b", "1 to 128 letters"),
    (make, {"request_id": "a\n"}, "request_id", "a\n", "1 to 128 letters"),
    (make, {"request_id": "é"}, "request_id", "é", "1 to 128 letters"),
    (make, {"request_id": "a" * 129}, "request_id", "a" * 129, "1 to 128 letters"),
    # sampling numbers
    *(
        (sampled, {name: value}, name, value, allowed)
        for name, (allowed, *values) in NUMBERS.items()
        for value in values
    ),
    # lengths
    (sampled, {"max_tokens": 0}, "max_tokens", 0, "1 to "),
    (sampled, {"max_tokens": CONTEXT}, "max_tokens", CONTEXT, "context has left"),
    (sampled, {"max_tokens": 2**32 - 1}, "max_tokens", 2**32 - 1, "context has left"),
    (sampled, {"max_tokens": 5, "min_tokens": 6}, "min_tokens", 6, "0 to 5 (max_tokens)"),
    (sampled, {"min_tokens": 2**31}, "min_tokens", 2**31, "(max_tokens)"),
    # stops and logprobs
    (sampled, {"stop": ["a"] * 17}, "stop", "17 strings", "at most 16 strings"),
    (sampled, {"stop": ["", "a" * 257]}, "stop[1]", "257 characters", "at most 256 characters"),
    (sampled, {"stop": ["a" * 257]}, "stop[0]", "257 characters", "at most 256 characters"),
    (sampled, {"stop_token_ids": [1] * 65}, "stop_token_ids", "65 ids", "at most 64 ids"),
    (sampled, {"stop_token_ids": [1, LAST_ID + 1]}, "stop_token_ids[1]", LAST_ID + 1, "0 to"),
    # penalties and biases
    (sampled, {"logit_bias": {3: 100.5}}, "logit_bias[3]", 100.5, "-100 to 100"),
    (sampled, {"logit_bias": {3: math.nan}}, "logit_bias[3]", math.nan, "-100 to 100"),
    (sampled, {"logit_bias": {3: -math.inf}}, "logit_bias[3]", -math.inf, "-100 to 100"),
    (sampled, {"logit_bias": {9: 101.0, 3: 102.0}}, "logit_bias[3]", 102.0, "-100 to"),
    (sampled, {"logit_bias": {LAST_ID + 1: 0.0}}, f"logit_bias[{LAST_ID + 1}]", LAST_ID + 1, IDS),
    (sampled, MANY_BIASES, "logit_bias", "1025 entries", "at most 1024 entries"),
    # where no verifier tells how likely a prompt is
    (sampled, {"prompt_logprobs": 0}, "prompt_logprobs", "set", "left out (no verifier here"),
    # several completions
    (make, {"n": 0}, "n", 0, "1 to 16"),
    (make, {"n": 17}, "n", 17, "1 to 16"),
    (make, {"n": 2**32 - 1}, "n", 2**32 - 1, "1 to 16"),
    (make, {"n": 10, "request_id": "r" * 127}, "request_id", "r" * 127, "at most 126 characters"),
    (make, {"n": 11, "request_id": "r" * 126}, "request_id", "r" * 126, "at most 125 characters"),
    # token limits
    (sampled, {"allowed_token_ids": [1] * 4097}, "allowed_token_ids", "4097 ids", "most 4096 ids"),
    (sampled, {"allowed_token_ids": [1, LAST_ID + 1]}, "allowed_token_ids[1]", LAST_ID + 1, "0 to"),
    (sampled, {"bad_words": ["a"] * 129}, "bad_words", "129 words", "at most 128 words"),
    (sampled, {"bad_words": ["a", "b" * 129]}, "bad_words[1]", "129 characters", "1 to 128 char"),
    (sampled, {"bad_words": [""]}, "bad_words[0]", "0 characters", "1 to 128 characters"),
    (sampled, {"bad_words": ["  "]}, "bad_words[0]", "2 characters", "not all of them blank"),
    # turns and cuts
    (make, {"priority": 101}, "priority", 101, "-100 to 100"),
    (make, {"priority": -(2**31)}, "priority", -(2**31), "-100 to 100"),
    (make, {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", 0, "1 to 64 (the model's"),
    (make, {"truncate_prompt_tokens": 65}, "truncate_prompt_tokens", 65, "1 to 64 (the model's"),
    (
        make,
        {"prompt": "q " * 80} | {"truncate_prompt_tokens": 64},
        "prompt",
        "64 tokens",
        "1 to 63",
    ),
    # where no verifier keeps outputs to a format
    (sampled, {"json_schema": "{}"}, "json_schema", "set", UNKEPT),
    (sampled, {"regex": "a"}, "regex", "set", UNKEPT),
    (sampled, {"choice": pb.Choice(options=["a"])}, "choice", "set", UNKEPT),
    # speculation
    (speculated, {"method": "magic"}, "method", "magic", "one of: ngram, model"),
    (speculated, {"method": " "}, "method", " ", "one of: ngram, model"),
    (speculated, {"method": "ngram,magic"}, "method", "ngram,magic", "ngram, model"),
    (speculated, {"method": "ngram,"}, "method", "ngram,", "one of: ngram, model"),
    (speculated, {"method": "model,model"}, "method", "model,model", "each once, of: ngram, model"),
    (speculated, TREES | BOTH | {RULE: NAMED + "STANDARD"}, RULE, "STANDARD", NO_TREES_OF_BOTH),
    (looked_up, TREES | {RULE: NAMED + "STANDARD"}, RULE, "STANDARD", NO_TREES_OF_NGRAM),
    (speculated, {"num_speculative_tokens": 0}, "num_speculative_tokens", 0, "1 to 64"),
    (speculated, {"num_speculative_tokens": 65}, "num_speculative_tokens", 65, "1 to 64"),
    (speculated, TREES, "num_candidates", 2, CHAINS_ONLY),
    (speculated, {"num_candidates": 0}, "num_candidates", 0, "1 to 8"),
    (speculated, {"num_candidates": 9}, "num_candidates", 9, "1 to 8"),
    (speculated, TREES | BLOCK, RULE, "BLOCK", "STANDARD, COUPLED or AUTO"),
    (speculated, {RULE: NAMED + "GREEDY"}, RULE, "GREEDY", RULES),
    (speculated, {RULE: 77}, RULE, "77", RULES),
]


@pytest.mark.parametrize(
    ("maker", "fields", "field", "value", "allowed"),
    CASES,
    ids=lambda part: getattr(part, "__name__", str(part)[:40]),
)
def test_the_refusal_names_field_value_and_range(maker, fields, field, value, allowed) -> None:
    with pytest.raises(InvalidRequest) as caught:
        maker(**fields)
    error, field = caught.value, PARTS[maker] + field
    assert error.field == field
    if value is not None:
        assert repr(error.value) == repr(value)
    assert allowed in error.allowed
    for part in (field, repr(error.value), error.allowed):
        assert part in str(error)


@pytest.mark.parametrize("name", [name for name, one in DECLARED.items() if one.kind is float])
def test_no_number_is_taken_that_is_none_or_beyond_its_range(name) -> None:
    for value in (math.nan, math.inf, -math.inf, 2 * DECLARED[name].allowed.high):
        with pytest.raises(InvalidRequest) as caught:
            sampled(**{name: value})
        assert caught.value.field == f"sampling.{name}"
        assert DECLARED[name].allowed.text in caught.value.allowed


def test_max_tokens_may_fill_the_context_and_not_one_more() -> None:
    room = CONTEXT - 3
    three = ids(5, 6, 7)
    make(**three, sampling=pb.SamplingParams(max_tokens=room))
    with pytest.raises(InvalidRequest, match=f"1 to {room} ") as caught:
        make(**three, sampling=pb.SamplingParams(max_tokens=room + 1))
    assert caught.value.field == "sampling.max_tokens"


def test_a_request_without_input_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="one of prompt, tokens, conversation") as caught:
        build_spec(read_request(pb.GenerateRequest()), tokenizer(), MODEL)
    assert caught.value.field == "input"


def test_no_method_is_known_when_no_drafter_is_served() -> None:
    with pytest.raises(InvalidRequest, match="no drafter is served"):
        make(replace(MODEL, methods=()), speculation=pb.SpeculationParams(method="ngram"))


def test_methods_that_no_drafter_runs_together_are_refused_with_those_that_one_does() -> None:
    apart = frozenset({frozenset({"ngram"}), frozenset({"model", "skip"})})
    served = replace(MODEL, methods=("ngram", "model", "skip"), teams=apart)
    make(served, speculation=pb.SpeculationParams(method="skip,model"))
    with pytest.raises(InvalidRequest, match=r"together: model\+skip, ngram$") as caught:
        make(served, speculation=pb.SpeculationParams(method="ngram,model"))
    assert caught.value.field == "speculation.method"


def test_no_tree_is_drafted_when_no_drafter_is_served() -> None:
    nobody = replace(MODEL, methods=(), default_method="", capabilities=frozenset())
    with pytest.raises(InvalidRequest, match="no drafter is served") as caught:
        make(nobody, speculation=pb.SpeculationParams(num_candidates=2))
    assert caught.value.field == "speculation.num_candidates"


def test_as_many_biases_as_allowed_are_taken() -> None:
    wide = replace(MODEL, vocab_size=2000)
    spec = make(wide, sampling=pb.SamplingParams(logit_bias=dict.fromkeys(range(1024), -100.0)))
    assert len(spec.sampling.logit_bias) == 1024


@pytest.mark.parametrize("limit", [{"allowed_token_ids": [1]}, {"bad_words": ["law"]}])
def test_limits_that_no_verifier_heeds_are_refused(limit) -> None:
    old = replace(MODEL, limits_tokens=False)
    with pytest.raises(InvalidRequest, match="no verifier here heeds it") as caught:
        make(old, sampling=pb.SamplingParams(**limit))
    assert caught.value.field == f"sampling.{next(iter(limit))}"


def test_a_token_that_is_cut_away_is_not_looked_at_and_others_keep_their_places() -> None:
    wrong = LAST_ID + 1
    assert make(**ids(wrong, 5, 6), truncate_prompt_tokens=2).prompt == (5, 6)
    with pytest.raises(InvalidRequest) as caught:
        make(**ids(5, 6, wrong), truncate_prompt_tokens=2)
    assert caught.value.field == "tokens.ids[2]"


def test_a_model_without_a_chat_template_takes_no_conversation() -> None:
    plain = Tokenizer(bundle(byte_level_backend(), chat_template=""))
    request = pb.GenerateRequest(**talk(("user", "x")))
    with pytest.raises(InvalidRequest, match="tiny has no chat template") as caught:
        build_spec(read_request(request), plain, MODEL)
    assert caught.value.field == "conversation"


def test_no_text_of_the_caller_is_in_a_refusal() -> None:
    for fields in (
        {"prompt": "secret words " * 40},
        talk(("user", "secret words")) | {"sampling": pb.SamplingParams(max_tokens=0)},
        talk(("user", "secret words"), ("user", "secret words")),
        {"sampling": pb.SamplingParams(stop=["secret words" * 40])},
    ):
        with pytest.raises(InvalidRequest) as caught:
            make(**fields)
        assert "secret" not in str(caught.value)


def test_a_refused_request_draws_no_seed() -> None:
    def no_seed() -> int:
        raise AssertionError("drawn")

    with pytest.raises(InvalidRequest):
        build_spec(
            read_request(pb.GenerateRequest(prompt="")), tokenizer(), MODEL, new_seed=no_seed
        )
