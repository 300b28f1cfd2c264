"""The published names and numbers, and stubs that are what the protos give."""

import subprocess
import sys
from pathlib import Path

import paceline
import pytest
from paceline.v1 import inference_pb2

from services.contract.types import DraftSource

PROTOS = Path(__file__).resolve().parents[2] / "protos"
BUF = Path(sys.executable).with_name("buf")

MESSAGES = {
    "GenerateRequest": "1 request_id 2 model 3 prompt 4 tokens 5 conversation 6 sampling "
    "7 speculation 8 include_rounds 9 ephemeral 10 priority 12 truncate_prompt_tokens",
    "TokenIds": "1 ids",
    "Conversation": "1 messages",
    "Message": "1 role 2 content",
    "SamplingParams": "1 temperature 2 top_p 3 top_k 4 min_p 5 frequency_penalty "
    "6 presence_penalty 7 repetition_penalty 8 max_tokens 9 min_tokens 10 stop "
    "11 stop_token_ids 12 ignore_eos 13 seed 14 logit_bias 15 logprobs 16 json_schema "
    "17 regex 18 choice 19 include_stop_str_in_output 20 skip_special_tokens "
    "21 grammar 22 structural_tag 23 response_format_start 24 allowed_token_ids 25 bad_words "
    "26 prompt_logprobs",
    "FormatStart": "1 text 2 token_ids 3 auto",
    "Choice": "1 options",
    "SpeculationParams": "1 method 2 num_speculative_tokens 3 rejection_sample_method "
    "4 disable_speculative_decoding 5 num_candidates",
    "GenerateResponse": "1 started 2 chunk 3 complete",
    "ResumeResponse": "1 started 2 chunk 3 complete",
    "Started": "1 session_id 2 prompt_tokens 3 seed 10 prompt_logprobs 11 prompt_offset",
    "ScoreRequest": "1 model 2 prompt 3 tokens 4 conversation 5 continuations 6 logprobs "
    "7 ephemeral",
    "Continuation": "1 text 2 tokens",
    "ScoreResponse": "1 context_tokens 2 scores",
    "ContinuationScore": "1 tokens 2 logprob 3 is_greedy",
    "Chunk": "1 offset 2 token_ids 3 text 4 logprobs 5 rounds 6 pieces 7 origins",
    "RoundStats": "1 index 2 epoch 3 draft_tokens 4 accepted_tokens 5 emitted_tokens "
    "6 draft_ms 7 verify_ms 8 queue_ms 9 round_ms 10 batch_size 11 drafter 12 verifier "
    "13 rejection_sample_method 14 discarded_tokens",
    "Complete": "1 finish_reason 2 usage 3 speculation 4 text 5 matched_stop",
    "Usage": "1 prompt_tokens 2 completion_tokens 3 cached_tokens",
    "SpecDecodeMetrics": "1 num_spec_steps 2 num_draft_tokens 3 num_accepted_draft_tokens "
    "4 mean_acceptance_length 5 draft_acceptance_rate 6 acceptance_histogram "
    "7 num_target_steps 8 block_efficiency 9 sources",
    "DraftSourceMetrics": "1 source 2 num_draft_tokens 3 num_accepted_draft_tokens",
    "ResumeRequest": "1 session_id 2 offset 3 prefix_hash",
}
ENUMS = {
    "RejectionSampleMethod": "UNSPECIFIED 0 AUTO 1 COUPLED 2 STANDARD 3 BLOCK 4",
    "FinishReason": "UNSPECIFIED 0 STOP 1 LENGTH 2 ABORT 3",
    "DraftSource": "UNSPECIFIED 0 THIS_TEXT 1 OTHER_TEXTS 2 LAWS 3 FIRSTS 4 MODEL 5 GRAPH 6 "
    "SKIP 7 LOOKAHEAD 8",
}
PREFIXES = {
    "RejectionSampleMethod": "REJECTION_SAMPLE_METHOD_",
    "FinishReason": "FINISH_REASON_",
    "DraftSource": "DRAFT_SOURCE_",
}
ONEOFS = {
    ("GenerateRequest", "input"): ["prompt", "tokens", "conversation"],
    ("SamplingParams", "response_format"): [
        "json_schema",
        "regex",
        "choice",
        "grammar",
        "structural_tag",
    ],
    ("FormatStart", "start"): ["text", "token_ids", "auto"],
    ("GenerateResponse", "event"): ["started", "chunk", "complete"],
    ("ResumeResponse", "event"): ["started", "chunk", "complete"],
}
METHODS = {
    "Generate": ("GenerateRequest", "GenerateResponse", True),
    "Resume": ("ResumeRequest", "ResumeResponse", True),
    "Score": ("ScoreRequest", "ScoreResponse", False),
    "Abort": ("AbortRequest", "AbortResponse", False),
    "GetSession": ("GetSessionRequest", "GetSessionResponse", False),
    "GetModelInfo": ("GetModelInfoRequest", "GetModelInfoResponse", False),
    "GetServerInfo": ("GetServerInfoRequest", "GetServerInfoResponse", False),
}
FILE = inference_pb2.DESCRIPTOR


def pairs(table):
    words = table.split()
    return list(zip(words[::2], words[1::2], strict=True))


@pytest.mark.parametrize("name", MESSAGES)
def test_a_published_field_keeps_its_name_and_number(name):
    fields = FILE.message_types_by_name[name].fields_by_number
    for number, field in pairs(MESSAGES[name]):
        assert fields[int(number)].name == field


@pytest.mark.parametrize("name", ENUMS)
def test_a_published_enum_value_keeps_its_name_and_number(name):
    values = FILE.enum_types_by_name[name].values_by_number
    for value, number in pairs(ENUMS[name]):
        assert values[int(number)].name == PREFIXES[name] + value


def test_a_source_is_the_same_number_and_name_for_drafters_and_clients():
    published = {
        value.number: value.name.removeprefix("DRAFT_SOURCE_").lower()
        for value in inference_pb2.DraftSource.DESCRIPTOR.values
    }
    assert published == {source.value: source.name.lower() for source in DraftSource}
    known = [source.value for source in paceline.DraftSource]
    assert known == ["unknown", *list(published.values())[1:]]


@pytest.mark.parametrize(("message", "group"), ONEOFS)
def test_a_published_oneof_keeps_its_members(message, group):
    members = FILE.message_types_by_name[message].oneofs_by_name[group].fields
    assert [field.name for field in members] == ONEOFS[message, group]


def test_the_front_door_has_the_published_methods():
    service = FILE.services_by_name["InferenceService"]
    assert service.full_name == "paceline.v1.InferenceService"
    assert {
        m.name: (m.input_type.name, m.output_type.name, m.server_streaming) for m in service.methods
    } == METHODS


def test_a_scalar_with_a_meaningful_default_tells_absent_from_zero():
    for message in ("SamplingParams", "SpeculationParams"):
        for field in FILE.message_types_by_name[message].fields:
            assert field.is_repeated or field.has_presence, field.full_name


def test_the_stubs_are_what_the_protos_give():
    check = [sys.executable, PROTOS / "generate.py", "--check"]
    result = subprocess.run(check, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.skipif(not BUF.exists(), reason="buf is not installed")
@pytest.mark.parametrize("command", [["lint"], ["breaking", "--against", "protos/frozen.binpb"]])
def test_buf_has_no_complaint(command):
    result = subprocess.run(
        [BUF, *command], cwd=PROTOS.parent, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout + result.stderr) == (0, "")
