"""Our events as a gateway's responses, as they come or all at the end."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from dataclasses import replace
from typing import Any

import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as engine

from orchestrator.frontdoor.vllm_gateway.archive import PART_BYTES, archive, chunks
from orchestrator.frontdoor.vllm_gateway.response import Answer
from orchestrator.session.answer import Chunk, Complete, Started
from orchestrator.session.totals import SpecTotals
from orchestrator.steering.rounds import Ending
from orchestrator.text import Conversation, Tokenizer
from services.contract.types import FinishReason, LogprobRow, NamedText, TokenizerBundle
from tests.orchestrator.text_kit import BOS, EOS, bundle, byte_level_backend

STARTED = Started(session_id="gateway/r", prompt_tokens=4, seed=1)
EVENTS = (
    STARTED,
    Chunk(0, (7, 8), "ab", (LogprobRow(-0.5), LogprobRow(-1.0))),
    Chunk(2, (9,), "c", (LogprobRow(-2.0, (3, 9), (-0.25, -2.0)),)),
)
TOTALS = SpecTotals(draft_tokens=9, accepted_tokens=5)


def ended(reason: FinishReason = FinishReason.LENGTH, **stop: Any) -> Complete:
    return Complete(Ending(reason, **stop), "abc", TOTALS, 4, 3, cached_tokens=2)


def answers(
    *events: Any, stream: bool = True, **params: Any
) -> tuple[list[engine.GenerateStreamChunk], engine.GenerateComplete]:
    request = engine.GenerateRequest(stream=stream, sampling_params=engine.SamplingParams(**params))
    answer = Answer(request)
    told = [response for event in events if (response := answer.add(event)) is not None]
    assert [response.WhichOneof("response") for response in told[:-1]] == ["chunk"] * (
        len(told) - 1
    )
    return [response.chunk for response in told[:-1]], told[-1].complete


def test_chunks_hold_the_new_tokens_and_counts_up_to_them():
    told, complete = answers(*EVENTS, ended())
    assert [list(chunk.token_ids) for chunk in told] == [[7, 8], [9]]
    assert [(chunk.prompt_tokens, chunk.completion_tokens) for chunk in told] == [(4, 2), (4, 3)]
    assert list(complete.output_ids) == [7, 8, 9]


@pytest.mark.parametrize("stream", [True, False])
def test_the_end_tells_all_counts(stream):
    told, complete = answers(*EVENTS, ended(), stream=stream)
    assert bool(told) == stream
    assert (complete.prompt_tokens, complete.completion_tokens, complete.cached_tokens) == (4, 3, 2)
    assert (complete.spec_accepted_tokens, complete.spec_draft_tokens) == (5, 9)
    assert list(complete.output_ids) == [7, 8, 9]


def test_log_probabilities_come_once_with_their_tokens_or_at_the_end():
    told, complete = answers(*EVENTS, ended())
    assert [list(chunk.output_logprobs.token_ids) for chunk in told] == [[7, 8], [9]]
    assert not complete.HasField("output_logprobs")
    _, whole = answers(*EVENTS, ended(), stream=False)
    rows = whole.output_logprobs
    assert list(rows.token_ids) == [7, 8, 9]
    assert list(rows.token_logprobs) == [-0.5, -1.0, -2.0]
    [top] = rows.top_logprobs
    assert (list(top.token_ids), list(top.values)) == ([3, 9], [-0.25, -2.0])


def test_without_log_probabilities_there_is_no_field_of_them():
    _, complete = answers(STARTED, Chunk(0, (7,), "a"), ended(), stream=False)
    assert not complete.HasField("output_logprobs")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (FinishReason.STOP, "stop"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.ABORT, "abort"),
    ],
)
def test_the_end_is_called_as_vllm_calls_it(reason, said):
    assert answers(STARTED, ended(reason))[1].finish_reason == said


def test_what_stopped_it_is_told_but_an_end_of_text_is_not():
    def matched(**stop: Any) -> str | None:
        complete = answers(STARTED, ended(FinishReason.STOP, **stop), stop_token_ids=[9])[1]
        kind: str | None = complete.WhichOneof("matched_stop")
        return kind and str(getattr(complete, kind))

    assert matched(matched="ab") == "ab"
    assert matched(matched=9) == "9"
    assert matched(matched=1) is None
    assert matched() is None


def unpacked(packed: TokenizerBundle) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(archive(packed))) as files:
        return {name: files.read(name).decode() for name in files.namelist()}


def test_the_archive_holds_the_files_of_a_model_folder():
    given = bundle(byte_level_backend())
    files = unpacked(given)
    assert files["tokenizer.json"] == given.tokenizer_json
    config = json.loads(files["tokenizer_config.json"])
    assert config == {"bos_token": BOS, "eos_token": EOS, "chat_template": given.chat_template}
    assert json.loads(files["generation_config.json"]) == {}


def test_the_archive_has_one_template_for_conversations_with_and_without_tools():
    plain, with_tools = (
        " \n{{ messages | length }} plain\n",
        "\n\n{{ tools | length }} tools \n  \n",
    )
    given = replace(
        bundle(byte_level_backend(), plain),
        special_tokens=(NamedText("pad_token", "<pad>"), NamedText("eos_token", EOS)),
        chat_templates=(NamedText("tool_use", with_tools), NamedText("rag", "no")),
    )
    config = json.loads(unpacked(given)["tokenizer_config.json"])
    assert (config["pad_token"], config["eos_token"]) == ("<pad>", EOS)
    one = Tokenizer(replace(given, chat_template=config["chat_template"], chat_templates=()))
    for tools in (None, [{"name": "tell"}]):
        talk = Conversation([{"role": "user", "content": "hi"}], tools)
        assert one.render(talk) == Tokenizer(given).render(talk)


def test_a_tokenizer_without_a_template_has_none_in_its_archive():
    given = TokenizerBundle(fingerprint="f", tokenizer_json="{}")
    assert json.loads(unpacked(given)["tokenizer_config.json"]) == {}


@pytest.mark.parametrize("size", [1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES])
def test_the_last_part_of_an_archive_and_no_other_tells_its_digest(size):
    data = bytes(index % 251 for index in range(size))
    parts = list(chunks(data))
    assert b"".join(part.data for part in parts) == data
    assert all(0 < len(part.data) <= PART_BYTES for part in parts)
    digests = [part.sha256 for part in parts]
    assert digests == [""] * (len(parts) - 1) + [hashlib.sha256(data).hexdigest()]


def test_the_same_tokenizer_makes_the_same_archive():
    assert archive(bundle(byte_level_backend())) == archive(bundle(byte_level_backend()))
