"""What a good request becomes: defaults, modes, seeds, digests."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.v1 import inference_pb2 as pb

from orchestrator.requests import build_spec, dump_spec, load_spec, parse_defaults
from orchestrator.requests.checks import shown, to_float32
from services.common.errors import DataLoss
from services.common.types import ResolvedSampling, VerifyMode
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


def test_given_values_are_kept() -> None:
    spec = make(
        request_id="a-b_c.d:1",
        model="tiny",
        sampling=pb.SamplingParams(
            temperature=0.5,
            top_p=0.25,
            top_k=9,
            max_tokens=20,
            min_tokens=20,
            stop=["b", "a", "b"],
            stop_token_ids=[9, 4, 9],
            seed=2**64 - 1,
            logprobs=0,
            include_stop_str_in_output=True,
            skip_special_tokens=False,
        ),
        speculation=pb.SpeculationParams(
            method="ngram", num_speculative_tokens=64, disable_speculative_decoding=True
        ),
        include_rounds=True,
        ephemeral=True,
    )
    assert spec.session == "a-b_c.d:1"
    assert spec.sampling == ResolvedSampling(
        temperature=0.5,
        top_p=0.25,
        top_k=9,
        max_tokens=20,
        min_tokens=20,
        stop_token_ids=tuple(sorted({4, 9, *EOS_IDS})),
        logprobs=0,
    )
    assert spec.stop == ("b", "a")
    assert spec.seed == 2**64 - 1
    assert spec.include_stop_str
    assert not spec.skip_special_tokens
    assert (spec.method, spec.window_cap) == (("ngram",), 64)
    assert spec.disable_speculation
    assert spec.include_rounds
    assert spec.ephemeral


@pytest.mark.parametrize(
    "params",
    [
        {"min_p": 0.0},
        {"frequency_penalty": 0.0},
        {"presence_penalty": -0.0},
        {"repetition_penalty": 1.0},
        {"top_k": 0},
        {"top_k": 10**9},
        {"top_p": 1.0},
        {"temperature": 1.0},
        {"ignore_eos": False},
        {"stop": []},
    ],
)
def test_a_neutral_value_is_the_same_as_none(params: dict[str, Any]) -> None:
    assert sampled(**params) == make()


@pytest.mark.parametrize(
    "params",
    [
        {"num_candidates": 1},
        {"rejection_sample_method": pb.REJECTION_SAMPLE_METHOD_UNSPECIFIED},
        {"rejection_sample_method": pb.REJECTION_SAMPLE_METHOD_AUTO},
        {"rejection_sample_method": pb.REJECTION_SAMPLE_METHOD_COUPLED},
        {"method": ""},
    ],
)
def test_a_neutral_speculation_value_is_the_same_as_none(params: dict[str, Any]) -> None:
    assert speculated(**params) == make()


def test_temperature_zero_is_greedy() -> None:
    assert sampled(temperature=0.0).mode is VerifyMode.GREEDY
    coupled = pb.SpeculationParams(rejection_sample_method=pb.REJECTION_SAMPLE_METHOD_COUPLED)
    greedy = make(sampling=pb.SamplingParams(temperature=0.0), speculation=coupled)
    assert greedy.mode is VerifyMode.GREEDY


def test_ignoring_eos_leaves_only_the_stop_ids_asked_for() -> None:
    assert sampled(ignore_eos=True, stop_token_ids=[8]).sampling.stop_token_ids == (8,)


def test_a_drawn_seed_has_64_bits_and_differs() -> None:
    request = pb.GenerateRequest(prompt="the law")
    specs = [build_spec(request, tokenizer(), MODEL) for _ in range(8)]
    assert len({spec.seed for spec in specs}) == 8
    assert len({spec.session for spec in specs}) == 8
    assert max(spec.seed for spec in specs) >= 2**48


def test_the_models_defaults_fill_what_is_left_out() -> None:
    text = '{"temperature": 0.6, "top_p": 0.9, "top_k": 40, "do_sample": false}'
    model = replace(MODEL, defaults=parse_defaults(text))
    sampling = make(model).sampling
    assert sampling.temperature == to_float32(0.6)
    assert (sampling.top_p, sampling.top_k) == (to_float32(0.9), 40)
    given = make(model, sampling=pb.SamplingParams(temperature=1.0, top_p=1.0, top_k=0)).sampling
    assert (given.temperature, given.top_p, given.top_k) == (1.0, 1.0, 0)
    assert parse_defaults(text).warnings == ()


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ('{"repetition_penalty": 1.1}', "repetition_penalty 1.1"),
        ('{"min_p": 0.1}', "min_p 0.1"),
        ('{"no_repeat_ngram_size": 3}', "no_repeat_ngram_size 3"),
        ('{"temperature": -1}', "temperature -1"),
        ('{"temperature": NaN}', "temperature nan"),
        ('{"top_p": "high"}', "top_p 'high'"),
        ('{"top_k": -1}', "top_k -1"),
        ("[1]", "not a JSON object"),
        ("{", "not a JSON object"),
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


def digest(**fields: Any) -> str:
    return make(**fields).digest


def test_equal_content_has_an_equal_digest() -> None:
    base = digest()
    assert digest(request_id="other") == base
    assert digest(sampling=pb.SamplingParams(temperature=1.0, repetition_penalty=1.0)) == base
    request = pb.GenerateRequest(prompt="the law")
    drawn = {build_spec(request, tokenizer(), MODEL).digest for _ in range(3)}
    assert drawn == {base}


def test_any_other_content_has_another_digest() -> None:
    others = [
        {"prompt": "the Law"},
        {"tokens": pb.TokenIds(ids=PROMPT)},
        {"conversation": pb.Conversation(messages=[pb.Message(role="user", content="the law")])},
        {"sampling": pb.SamplingParams(temperature=0.5)},
        {"sampling": pb.SamplingParams(max_tokens=3)},
        {"sampling": pb.SamplingParams(seed=7)},
        {"sampling": pb.SamplingParams(seed=0)},
        {"sampling": pb.SamplingParams(stop=["a"])},
        {"sampling": pb.SamplingParams(stop=["a", "b"])},
        {"sampling": pb.SamplingParams(logprobs=0)},
        {"sampling": pb.SamplingParams(ignore_eos=True)},
        {"sampling": pb.SamplingParams(include_stop_str_in_output=True)},
        {"sampling": pb.SamplingParams(skip_special_tokens=False)},
        {"speculation": pb.SpeculationParams(method="model")},
        {"speculation": pb.SpeculationParams(num_speculative_tokens=3)},
        {"speculation": pb.SpeculationParams(disable_speculative_decoding=True)},
        {"include_rounds": True},
        {"ephemeral": True},
    ]
    digests = {digest(), *(digest(**other) for other in others)}
    assert len(digests) == len(others) + 1


def test_a_spec_survives_being_stored() -> None:
    spec = make(
        sampling=pb.SamplingParams(stop=["é"], logprobs=2, seed=2**64 - 1, temperature=0.7),
        speculation=pb.SpeculationParams(method="model"),
    )
    assert load_spec(dump_spec(spec), spec.prompt) == spec
    biased = replace(spec, sampling=replace(spec.sampling, logit_bias=((3, 0.5),)))
    assert load_spec(dump_spec(biased), spec.prompt) == biased
    for field in fields(spec):
        assert type(getattr(load_spec(dump_spec(spec), ()), field.name)) is type(
            getattr(spec, field.name)
        )


@pytest.mark.parametrize("record", [b"", b"{", b"[]", b"{}", b'{"version": 99}', b'{"version": 1}'])
def test_a_record_of_another_kind_is_data_loss(record: bytes) -> None:
    with pytest.raises(DataLoss, match="cannot be read"):
        load_spec(record, ())


def test_a_spec_opens_its_text_stream() -> None:
    spec = sampled(stop=["law"], min_tokens=0)
    stream = spec.text_stream(tokenizer())
    stream.append([*PROMPT, *EOS_IDS], finished=True)
    assert stream.text == "the "


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_shown_number_is_the_number_that_was_sent(value: float) -> None:
    assert to_float32(shown(value)) == value
