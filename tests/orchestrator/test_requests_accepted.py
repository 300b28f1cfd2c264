"""What a good request becomes: defaults, modes, seeds, digests."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.v1 import inference_pb2 as pb

from orchestrator.frontdoor import requests
from orchestrator.frontdoor.grpc.decoding import read_request
from orchestrator.frontdoor.requests.checks import shown
from orchestrator.session.served_model import parse_defaults
from orchestrator.session.spec import SessionSpec
from orchestrator.session.spec_record import dump_spec, load_spec
from services.contract.sampling import to_float32
from services.contract.types import FormatKind, ResolvedSampling, ResponseFormat, VerifyMode
from tests.orchestrator.request_kit import CONTEXT, MODEL, make, sampled, speculated
from tests.orchestrator.text_kit import EOS, tokenizer

EOS_IDS = tokenizer().encode(EOS)
PROMPT = tokenizer().encode("the law")


def test_an_empty_request_is_neutral() -> None:
    spec = make()
    room = CONTEXT - len(PROMPT)
    assert spec.prompt == PROMPT
    assert spec.sampling == ResolvedSampling(max_tokens=room, stop_token_ids=EOS_IDS)
    assert (spec.session, spec.model, spec.seed) == ("drawn", "tiny", 7)
    assert spec.mode is VerifyMode.COUPLED
    assert (spec.method, spec.window_cap, spec.num_candidates) == ((), None, 1)
    assert spec.skip_special_tokens
    assert not spec.include_stop_str


def test_max_tokens_left_out_is_256_or_the_room_left() -> None:
    wide = replace(MODEL, max_context_length=4096)
    assert make(wide).sampling.max_tokens == 256
    assert make().sampling.max_tokens == CONTEXT - len(PROMPT)
    assert sampled(max_tokens=CONTEXT - len(PROMPT)).sampling.max_tokens == CONTEXT - len(PROMPT)


KEPT = {"temperature": 0.5, "top_p": 0.25, "top_k": 9, "max_tokens": 20, "min_tokens": 20}
KEPT |= {"logprobs": 0, "min_p": 0.125, "frequency_penalty": -0.5, "presence_penalty": 2.0}
KEPT |= {"repetition_penalty": 1.25}


def test_given_values_are_kept() -> None:
    stops = {"stop": ["b", "a", "b"], "stop_token_ids": [9, 4, 9], "skip_special_tokens": False}
    biases = {9: -1.5, 2: 100.0, 4: 0.0}
    more = {"logit_bias": biases, "include_stop_str_in_output": True, "seed": 2**64 - 1}
    off = {"method": "ngram", "num_speculative_tokens": 64, "disable_speculative_decoding": True}
    named = {"request_id": "a-b_c.d:1", "model": "tiny", "include_rounds": True, "ephemeral": True}
    sampling = pb.SamplingParams(**KEPT, **stops, **more)
    spec = make(sampling=sampling, speculation=pb.SpeculationParams(**off), **named)
    assert spec.session == "a-b_c.d:1"
    ids = tuple(sorted({4, 9, *EOS_IDS}))
    kept = ResolvedSampling(**KEPT, stop_token_ids=ids, logit_bias=((2, 100.0), (9, -1.5)))
    assert spec.sampling == kept
    assert spec.stop == ("b", "a")
    assert spec.seed == 2**64 - 1
    assert spec.include_stop_str
    assert not spec.skip_special_tokens
    assert (spec.method, spec.window_cap) == (("ngram",), 64)
    assert spec.disable_speculation
    assert spec.include_rounds
    assert spec.ephemeral


NEUTRAL = {"min_p": 0.0, "frequency_penalty": 0.0, "presence_penalty": -0.0, "top_k": 10**9}
NEUTRAL |= {"repetition_penalty": 1.0, "top_p": 1.0, "temperature": 1.0, "ignore_eos": False}
NEUTRAL |= {"logit_bias": {3: 0.0, 5: -0.0}, "stop": [""]}


@pytest.mark.parametrize(("name", "value"), [*NEUTRAL.items(), ("top_k", 0)])
def test_a_neutral_value_is_the_same_as_none(name: str, value: Any) -> None:
    assert sampled(**{name: value}) == make()


@pytest.mark.parametrize(
    "params",
    [
        {"rejection_sample_method": pb.REJECTION_SAMPLE_METHOD_UNSPECIFIED},
        {"rejection_sample_method": pb.REJECTION_SAMPLE_METHOD_AUTO},
        {"method": ""},
    ],
)
def test_a_neutral_speculation_value_is_the_same_as_none(params: dict[str, Any]) -> None:
    assert speculated(**params) == make()


def test_one_candidate_by_number_asks_for_chains() -> None:
    assert speculated(num_candidates=1).chains
    assert not make().chains


RULES = {
    rule: getattr(pb, f"REJECTION_SAMPLE_METHOD_{rule}")
    for rule in ("AUTO", "COUPLED", "STANDARD", "BLOCK")
}


def ruled(rule: str, method: str = "model", **fields: Any) -> SessionSpec:
    speculation = pb.SpeculationParams(
        rejection_sample_method=RULES[rule], method=method, **fields.pop("speculation", {})
    )
    return make(fields.pop("served", MODEL), speculation=speculation, **fields)


@pytest.mark.parametrize("name", ["temperature", "repetition_penalty"])
def test_the_least_value_is_allowed_as_float32_has_it(name: str) -> None:
    asked = sampled(**{name: 1e-4})
    assert getattr(asked.sampling, name) == to_float32(1e-4)
    assert load_spec(dump_spec(asked), asked.prompt).sampling == asked.sampling


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "asked",
    [
        {"temperature": 0.0},
        {"temperature": -0.0},
        {"temperature": 1e-8},
        {"temperature": 9.9e-5},
        {"top_p": 0.0},
        {"top_p": 0.0, "temperature": 0.7},
    ],
    ids=str,
)
def test_where_the_likeliest_token_alone_is_left_it_is_greedy_whatever_rule_is_asked_for(
    rule: str, asked: dict[str, float]
) -> None:
    spec = ruled(rule, sampling=pb.SamplingParams(**asked))
    assert spec.mode is VerifyMode.GREEDY
    assert spec == ruled("AUTO", sampling=pb.SamplingParams(temperature=0.0))


def test_an_empty_stop_string_asks_for_nothing() -> None:
    assert sampled(stop=["", "a", ""]) == sampled(stop=["a"])


@pytest.mark.parametrize("rule", ["COUPLED", "STANDARD", "BLOCK"])
def test_a_rule_that_is_asked_for_is_the_one_used(rule: str) -> None:
    seeded = {"sampling": pb.SamplingParams(seed=5)}
    off = {"speculation": {"disable_speculative_decoding": True}}
    for other in ({}, seeded, off, {"method": "ngram"}):
        assert ruled(rule, **other).mode is VerifyMode[rule]


def test_auto_follows_the_seed_and_what_the_drafting_method_can_do() -> None:
    assert ruled("AUTO").mode is VerifyMode.BLOCK
    assert ruled("AUTO", speculation={"num_candidates": 8}).mode is VerifyMode.STANDARD
    assert ruled("AUTO", sampling=pb.SamplingParams(seed=0)).mode is VerifyMode.COUPLED
    assert ruled("AUTO", method="ngram").mode is VerifyMode.COUPLED
    off = {"disable_speculative_decoding": True}
    assert ruled("AUTO", speculation=off).mode is VerifyMode.COUPLED


def test_auto_looks_at_the_default_method_where_none_is_named() -> None:
    assert make().mode is VerifyMode.COUPLED
    assert make(replace(MODEL, default_method="model")).mode is VerifyMode.BLOCK
    silent = replace(MODEL, default_method="model", capabilities=frozenset())
    assert make(silent).mode is VerifyMode.COUPLED
    nobody = replace(MODEL, methods=(), default_method="")
    assert make(nobody).mode is VerifyMode.COUPLED


def test_auto_couples_short_chains_and_nothing_else_for_being_short() -> None:
    slow = replace(MODEL, slow_methods=frozenset({"model"}))
    assert ruled("AUTO", served=slow).mode is VerifyMode.COUPLED
    assert ruled("BLOCK", served=slow).mode is VerifyMode.BLOCK
    assert ruled("AUTO", served=slow, speculation={"num_candidates": 2}).mode is VerifyMode.STANDARD
    others = replace(MODEL, slow_methods=frozenset({"ngram"}))
    assert ruled("AUTO", served=others).mode is VerifyMode.BLOCK


def test_trees_that_are_not_sampled_are_coupled() -> None:
    served = replace(MODEL, capabilities=frozenset({"ngram:tree"}))
    spec = ruled("AUTO", method="ngram", served=served, speculation={"num_candidates": 3})
    assert (spec.mode, spec.num_candidates) == (VerifyMode.COUPLED, 3)


def test_several_methods_keep_their_order_and_are_matched_exactly() -> None:
    for rule in ("AUTO", "COUPLED"):
        spec = ruled(rule, method="ngram, model")
        assert (spec.method, spec.mode) == (("ngram", "model"), VerifyMode.COUPLED)
    zero = {"sampling": pb.SamplingParams(temperature=0.0)}
    assert ruled("STANDARD", method="model,ngram", **zero).mode is VerifyMode.GREEDY
    default = replace(MODEL, default_method="model,ngram")
    assert make(default).mode is VerifyMode.COUPLED


def test_several_methods_draft_trees_whatever_each_of_them_drafts() -> None:
    spec = ruled("AUTO", method="ngram,model", speculation={"num_candidates": 3})
    assert (spec.num_candidates, spec.mode) == (3, VerifyMode.COUPLED)


def test_where_nothing_is_drafted_there_are_no_candidates() -> None:
    off = {"disable_speculative_decoding": True, "num_candidates": 4}
    assert ruled("AUTO", speculation=off).num_candidates == 1


def test_ignoring_eos_leaves_only_the_stop_ids_asked_for() -> None:
    assert sampled(ignore_eos=True, stop_token_ids=[8]).sampling.stop_token_ids == (8,)


def test_a_drawn_seed_has_64_bits_and_differs() -> None:
    request = pb.GenerateRequest(prompt="the law")
    specs = [requests.build_spec(read_request(request), tokenizer(), MODEL) for _ in range(8)]
    assert len({spec.seed for spec in specs}) == 8
    assert len({spec.session for spec in specs}) == 8
    assert max(spec.seed for spec in specs) >= 2**48


def test_the_models_defaults_fill_what_is_left_out() -> None:
    text = (
        '{"temperature": 0.6, "top_p": 0.9, "top_k": 40, "do_sample": false, "min_p": 0.05,'
        ' "repetition_penalty": 1.1, "presence_penalty": 1.5, "frequency_penalty": -0.5}'
    )
    model = replace(MODEL, defaults=parse_defaults(text))
    sampling = make(model).sampling
    assert sampling.temperature == to_float32(0.6)
    assert (sampling.top_p, sampling.top_k) == (to_float32(0.9), 40)
    assert (sampling.min_p, sampling.repetition_penalty) == (to_float32(0.05), to_float32(1.1))
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.5, -0.5)
    neutral = ResolvedSampling()
    numbers = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    numbers += ("presence_penalty", "frequency_penalty")
    given = {name: getattr(neutral, name) for name in numbers}
    assert make(model, sampling=pb.SamplingParams(**given)) == make()
    assert parse_defaults(text).warnings == ()


UNUSABLE = {"repetition_penalty": (0.0, 2.5), "min_p": (1.1, True), "presence_penalty": (-3,)}
UNUSABLE |= {"no_repeat_ngram_size": (3,), "temperature": (-1, math.nan), "top_p": ("high",)}
UNUSABLE |= {"top_k": (-1,)}
NAMED = [(name, value) for name, values in UNUSABLE.items() for value in values]


@pytest.mark.parametrize(
    ("config", "name"),
    [
        *((json.dumps({name: value}), f"{name} {value!r}") for name, value in NAMED),
        *((config, "not a JSON object") for config in ("[1]", "{")),
    ],
)
def test_a_default_that_cannot_be_used_is_neutral_and_named(config: str, name: str) -> None:
    defaults = parse_defaults(config)
    assert replace(defaults, warnings=()) == parse_defaults("")
    (warning,) = defaults.warnings
    assert name in warning


@pytest.mark.parametrize("config", ["", "{}", '{"repetition_penalty": 1.0, "top_k": null}'])
def test_a_neutral_generation_config_warns_of_nothing(config: str) -> None:
    assert parse_defaults(config).warnings == ()


def test_a_negative_zero_is_a_zero() -> None:
    text = '{"temperature": -0.0, "min_p": -0.0, "presence_penalty": -0.0}'
    plain = parse_defaults('{"temperature": 0.0}')
    assert repr(parse_defaults(text)) == repr(plain)
    given = {"temperature": -0.0, "min_p": -0.0, "frequency_penalty": -0.0}
    assert repr(sampled(**given)) == repr(sampled(temperature=0.0))


def digest(**fields: Any) -> str:
    return make(**fields).digest


def test_equal_content_has_an_equal_digest() -> None:
    base = digest()
    assert digest(request_id="other") == base
    assert digest(sampling=pb.SamplingParams(temperature=1.0, repetition_penalty=1.0)) == base
    biases = [pb.SamplingParams(logit_bias={3: 1.0}), pb.SamplingParams(logit_bias={3: 1.0})]
    biases[0].logit_bias[9], biases[0].logit_bias[5] = 2.0, 0.0
    biases[1] = pb.SamplingParams(logit_bias={9: 2.0})
    biases[1].logit_bias[3] = 1.0
    assert digest(sampling=biases[0]) == digest(sampling=biases[1])
    request = pb.GenerateRequest(prompt="the law")
    drawn = {
        requests.build_spec(read_request(request), tokenizer(), MODEL).digest for _ in range(3)
    }
    assert drawn == {base}


def test_any_other_content_has_another_digest() -> None:
    said = pb.Conversation(messages=[pb.Message(role="user", content="the law")])
    others = [{"prompt": "the Law"}, {"tokens": pb.TokenIds(ids=PROMPT)}, {"conversation": said}]
    others += [{"include_rounds": True}, {"ephemeral": True}]
    half = ("temperature", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
    params = [{name: 0.5} for name in half]
    params += [{"max_tokens": 3}, {"seed": 7}, {"seed": 0}, {"stop": ["a"]}, {"stop": ["a", "b"]}]
    params += [{"logprobs": 0}, {"logit_bias": {3: 0.5}}, {"logit_bias": {4: 0.5}}]
    params += [{"include_stop_str_in_output": True}, {"skip_special_tokens": False}]
    params += [{"ignore_eos": True}]
    others += [{"sampling": pb.SamplingParams(**one)} for one in params]
    rules = ("COUPLED", "STANDARD", "BLOCK")
    drafting = [{"rejection_sample_method": RULES[rule]} for rule in rules]
    drafting += [{"method": "model", "num_candidates": 2}, {"method": "model"}]
    drafting += [{"num_speculative_tokens": 3}, {"disable_speculative_decoding": True}]
    others += [{"speculation": pb.SpeculationParams(**one)} for one in drafting]
    assert len(others) == 28
    digests = {digest(), *(digest(**other) for other in others)}
    assert len(digests) == len(others) + 1


def test_a_retry_finds_its_session_whoever_drafts_by_now() -> None:
    before = ruled("AUTO")
    after = ruled("AUTO", served=replace(MODEL, capabilities=frozenset()))
    assert (before.mode, after.mode) == (VerifyMode.BLOCK, VerifyMode.COUPLED)
    assert before.digest == after.digest


def test_a_rule_that_a_request_settles_is_the_same_however_it_is_asked_for() -> None:
    for params in (pb.SamplingParams(seed=1), pb.SamplingParams(temperature=0.0)):
        auto, coupled = (ruled(rule, sampling=params) for rule in ("AUTO", "COUPLED"))
        assert auto == coupled


STRUCTURED = replace(MODEL, structured=True)


@pytest.mark.parametrize(
    ("params", "kind", "source"),
    [
        ({"json_schema": '{"type": "object"}'}, FormatKind.JSON_SCHEMA, ('{"type": "object"}',)),
        ({"regex": "[a-z]+"}, FormatKind.REGEX, ("[a-z]+",)),
        ({"choice": pb.Choice(options=["b", "a"])}, FormatKind.CHOICE, ("b", "a")),
        ({"grammar": 'start: "a"'}, FormatKind.GRAMMAR, ('start: "a"',)),
        ({"structural_tag": "{}"}, FormatKind.STRUCTURAL_TAG, ("{}",)),
    ],
)
def test_a_response_format_is_kept_as_it_was_given(params, kind, source) -> None:
    spec = make(STRUCTURED, sampling=pb.SamplingParams(**params))
    assert spec.sampling.response_format == ResponseFormat(kind, source)
    assert spec.digest != make(STRUCTURED).digest


@pytest.mark.parametrize(
    ("asked", "digest"),
    [
        (
            {"prompt": 'a "input":null b'},
            "fb39f30e58da4067894871056ed1cb239df0dbbdac0d010b460313e01b8d30a7",
        ),
        (
            {"prompt": "🙂\0" * 3, "sampling": pb.SamplingParams(stop=['"input":null'], seed=3)},
            "13498dd31b3789759edfdce90899a19e83f9a9c3b0f67639c2d7dec189243e92",
        ),
        (
            {"tokens": pb.TokenIds(ids=[3, 5])},
            "0dc1c5d442fdd99d2cc8c761cc1cceb4a84145f98d962e01a8518709d2da0f28",
        ),
        (
            {"conversation": pb.Conversation(messages=[pb.Message(role="user", content='"é')])},
            "76740f33e2b82a56e6d6c14b40c8482bf65c0c132be641b1a8247513c2c5e5d5",
        ),
        (
            {"sampling": pb.SamplingParams(regex="a")},
            "d19882b0c4f65d3d4927133abc260e5e0a99754169225cf25637413e1389a52c",
        ),
    ],
    ids=["a text", "of many bytes", "tokens", "a conversation", "a format"],
)
def test_a_request_keeps_the_digest_that_it_had(asked: dict[str, Any], digest: str) -> None:
    """A retry across an upgrade finds its session."""
    assert make(STRUCTURED, **asked).digest == digest


def test_allowed_tokens_are_kept_once_and_in_order() -> None:
    assert sampled(allowed_token_ids=[9, 4, 9]).sampling.allowed_token_ids == (4, 9)
    assert sampled(allowed_token_ids=[4, 9]).digest == sampled(allowed_token_ids=[9, 4]).digest
    assert sampled(allowed_token_ids=[4]).digest != make().digest


def test_a_bad_word_is_its_tokens_with_and_without_a_space_before_it_as_in_vllm() -> None:
    """vLLM's `SamplingParams.update_from_tokenizer`, written down once more."""
    encode, words = tokenizer().encode, ["the", " law", "drafter rides", "x", "the"]
    expected: list[tuple[int, ...]] = []
    for word in words:
        for prefix in ("", " "):
            found = encode(prefix + word.lstrip(), add_special_tokens=False)
            last = expected[-1] if expected else ()
            if not prefix or (found[0] != last[0] and len(found) == len(last)):
                expected.append(found)
    assert sampled(bad_words=words).sampling.bad_words == tuple(dict.fromkeys(expected))
    assert len(expected) > len(words)


@pytest.mark.parametrize(
    "given",
    [
        {"prompt": "the law of the large verifier"},
        {"conversation": pb.Conversation(messages=[pb.Message(role="user", content="the law")])},
        {"tokens": pb.TokenIds(ids=[5, 6, 7, 8])},
    ],
)
def test_a_cut_prompt_is_the_last_tokens_of_the_whole_one(given: dict[str, Any]) -> None:
    whole = make(**given)
    cut = make(**given, truncate_prompt_tokens=3)
    assert cut.prompt == whole.prompt[-3:]
    assert cut.sampling.max_tokens == CONTEXT - 3
    assert make(**given, truncate_prompt_tokens=CONTEXT).prompt == whole.prompt
    assert len({whole.digest, cut.digest, make(**given, truncate_prompt_tokens=2).digest}) == 3


def test_a_prompt_beyond_the_context_fits_once_it_is_cut() -> None:
    said = "the law " * 200
    assert len(make(prompt=said, truncate_prompt_tokens=10).prompt) == 10
    many = pb.TokenIds(ids=[5] * 1000)
    assert make(tokens=many, truncate_prompt_tokens=10).prompt == (5,) * 10
    talk = pb.Conversation(messages=[pb.Message(role="user", content=said)])
    assert len(make(conversation=talk, truncate_prompt_tokens=10).prompt) == 10


def test_a_priority_is_kept_and_none_is_the_digest_of_before() -> None:
    assert make(priority=-3).priority == -3
    assert make(priority=0).digest == make().digest != make(priority=1).digest


def test_a_spec_opens_its_text_stream() -> None:
    spec = sampled(stop=["law"], min_tokens=0)
    stream = spec.text_stream(tokenizer())
    stream.append([*PROMPT, *EOS_IDS], finished=True)
    assert stream.text == "the "


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_shown_number_is_the_number_that_was_sent(value: float) -> None:
    assert to_float32(shown(value)) == value
