"""The service that gateways speak, beside our own, on one orchestrator with real workers."""

import asyncio
import hashlib
import io
import json
import zipfile
from typing import Any

import grpc
import pytest
from smg_grpc_proto.generated import common_pb2 as common
from smg_grpc_proto.generated import vllm_engine_pb2 as engine

from orchestrator.frontdoor.draining import Grace, drain
from orchestrator.frontdoor.grpc.streaming import Reader
from orchestrator.frontdoor.vllm_gateway.servicer import MOST_ABORTED
from orchestrator.steering.config import Limits
from orchestrator.text import Conversation, Tokenizer
from services.contract.types import TokenizerBundle
from tests.gateway.kit import (
    GREEDY,
    PROMPT_IDS,
    answered,
    asked,
    gateway_front,
    gateway_stub,
    stored_keys,
    until_free,
)
from tests.integration.cluster import PATIENT, cluster, start_drafter, start_verifier
from tests.integration.known import known_drafter, known_verifier, refused, text
from tests.integration.test_overload import NARROW
from tests.models import EOS_ID, VOCAB_SIZE, tiny_tokenizer
from tests.waiting import until

# Nobody's leaving alone would end a session.
LASTING = Limits(detach_grace=500.0)


@pytest.fixture
async def running():
    """A verifier and a drafter with tiny models."""
    async with cluster(
        [await start_verifier()], [await start_drafter()], PATIENT, vllm_engine=True, limits=LASTING
    ) as made:
        yield made


@pytest.fixture
async def slow():
    """A verifier that says a known text, a token every few milliseconds."""
    async with cluster(
        [await known_verifier(5.0)], [], PATIENT, vllm_engine=True, limits=LASTING
    ) as made:
        yield made


async def begun(front: Any, name: str, seed: int = 1, **params: Any) -> tuple[Any, list[int]]:
    """A long answer that has begun, and what it said so far."""
    call = front.Generate(asked(name, seed=seed, **GREEDY | {"max_tokens": 50_000} | params))
    said: list[int] = []
    while len(said) < 3:
        said += (await call.read()).chunk.token_ids
    return call, said


async def test_an_answer_is_that_of_our_own_api_with_counts_as_it_grows(running):
    ours = await running.client.generate(tokens=PROMPT_IDS, **GREEDY)
    async with gateway_stub(running.address) as front:
        streamed = await answered(front.Generate(asked(**GREEDY)))
        whole = await answered(front.Generate(asked(stream=False, **GREEDY)))
    tokens = list(ours.token_ids)
    assert streamed.tokens == tokens == list(streamed.end.output_ids) == list(whole.end.output_ids)
    assert not whole.chunks
    counts = [len(chunk.token_ids) for chunk in streamed.chunks]
    assert [chunk.completion_tokens for chunk in streamed.chunks] == [
        sum(counts[: index + 1]) for index in range(len(counts))
    ]
    assert {chunk.prompt_tokens for chunk in streamed.chunks} == {len(PROMPT_IDS)}
    for end in (streamed.end, whole.end):
        assert (end.finish_reason, end.completion_tokens) == ("length", len(tokens))
        assert (end.prompt_tokens, end.cached_tokens) == (len(PROMPT_IDS), 0)
        assert 0 < end.spec_accepted_tokens <= end.spec_draft_tokens
        assert end.WhichOneof("matched_stop") is None


async def test_a_text_is_read_as_our_own_prompts_are(running):
    ours = await running.client.generate("the law", **GREEDY)
    asked_for = asked(**GREEDY)
    asked_for.text = "the law"
    async with gateway_stub(running.address) as front:
        theirs = await answered(front.Generate(asked_for))
    assert theirs.tokens == list(ours.token_ids)


@pytest.mark.parametrize("top", [0, 3])
async def test_log_probabilities_are_those_of_our_own_api(running, top):
    ours = await running.client.generate(tokens=PROMPT_IDS, logprobs=top, **GREEDY)
    async with gateway_stub(running.address) as front:
        streamed = await answered(front.Generate(asked(logprobs=top, **GREEDY)))
        whole = await answered(front.Generate(asked(stream=False, logprobs=top, **GREEDY)))
    for told in ([chunk.output_logprobs for chunk in streamed.chunks], [whole.end.output_logprobs]):
        rows = [(token, value) for part in told for token, value in zip_rows(part)]
        assert [token for token, _ in rows] == list(ours.token_ids)
        assert [value for _, value in rows] == pytest.approx(
            [row.logprob for row in ours.logprobs], abs=1e-3
        )
        tops = [list(one.token_ids) for part in told for one in part.top_logprobs]
        assert tops == [list(row.top_token_ids) for row in ours.logprobs if top]
        assert all(one.values[0] >= one.values[-1] for part in told for one in part.top_logprobs)


def zip_rows(part: engine.OutputLogProbs) -> list[tuple[int, float]]:
    return list(zip(part.token_ids, part.token_logprobs, strict=True))


UNSERVED: dict[str, dict[str, Any]] = {
    "sampling_params.n": {"n": 17},
    "sampling_params.grammar": {"grammar": "once upon a time"},
    "sampling_params.structural_tag": {"structural_tag": "{}"},
    "sampling_params.json_schema": {"json_schema": '{"type":"nonsense"}'},
    "sampling_params.top_p": {"top_p": 1.5},
    "sampling_params.max_tokens": {"max_tokens": 0},
    "tokenized.input_ids[0]": {"ids": (VOCAB_SIZE,)},
    "tokenized.input_ids": {"ids": ()},
}


async def test_what_cannot_be_served_is_refused_by_the_gateways_own_name(running):
    async with gateway_stub(running.address) as front:
        for field, params in UNSERVED.items():
            refusal = (await answered(front.Generate(asked(**params)))).refusal
            assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
            assert refusal.reason == "INVALID_REQUEST"
            assert refusal.message.startswith(f"{field}: ")
    assert not running.inference.active_sessions


@pytest.mark.parametrize("stream", [True, False])
async def test_abort_ends_an_answer_and_leaves_nothing_anywhere(slow, stream):
    async with gateway_stub(slow.address) as front:
        call = front.Generate(asked("mine", stream, seed=1, **GREEDY | {"max_tokens": 50_000}))
        answering = asyncio.create_task(answered(call))
        await until(lambda: slow.inference.active_sessions)
        await front.Abort(engine.AbortRequest(request_ids=["another", "mine"]))
        answer = await answering
        await until_free(slow)
        assert await stored_keys(slow) == []
    assert answer.end.finish_reason == "abort"
    told = list(answer.end.output_ids)
    assert told == text(1, len(told))


async def test_an_answer_that_nobody_waits_for_any_more_ends_and_leaves_nothing(slow):
    async with gateway_stub(slow.address) as front:
        call, said = await begun(front, "mine")
        assert said == text(1, len(said))
        assert await stored_keys(slow) == []
        call.cancel()
        await until_free(slow)
    assert await stored_keys(slow) == []


async def test_a_gateway_that_is_gone_loses_its_own_answers_alone(slow):
    async with gateway_stub(slow.address) as lasting:
        kept, said = await begun(lasting, "kept", seed=2, max_tokens=400)
        async with gateway_stub(slow.address) as gone:
            for index in range(3):
                await begun(gone, f"lost-{index}")
            assert slow.inference.active_sessions == 4
        await until(lambda: slow.inference.active_sessions == 1)
        rest = await answered(kept)
        await until_free(slow)
    assert said + rest.tokens == text(2, 400)
    assert rest.end.finish_reason == "length"


async def test_a_request_id_names_one_request_at_a_time(slow):
    async with gateway_stub(slow.address) as front:
        call, said = await begun(front, "twice")
        second = (await answered(front.Generate(asked("twice", seed=1, **GREEDY)))).refusal
        more = (await call.read()).chunk.token_ids
        assert said + list(more) == text(1, len(said) + len(more))
        call.cancel()
        await until(lambda: not slow.inference.active_sessions)
        after = await answered(front.Generate(asked("twice", seed=3, **GREEDY)))
    assert (second.code, second.reason) == (grpc.StatusCode.ALREADY_EXISTS, "ALREADY_EXISTS")
    assert after.tokens == text(3, 24)


async def test_a_session_of_our_own_api_is_out_of_a_gateways_reach(slow):
    async with gateway_stub(slow.address) as front:
        stream = slow.client.generate(
            "ab", request_id="own", temperature=0.0, seed=1, max_tokens=100, ignore_eos=True
        )
        first = await anext(aiter(stream))
        await front.Abort(engine.AbortRequest(request_ids=["own"]))
        theirs = await answered(front.Generate(asked("own", seed=2, **GREEDY)))
        rest = [event async for event in stream]
    assert first.session_id == "own"
    assert theirs.tokens == text(2, 24)
    assert rest[-1].finish_reason == "length"


async def test_what_is_far_too_long_is_refused_by_its_length(slow):
    async with gateway_stub(slow.address) as front:
        refusal = (await answered(front.Generate(asked(ids=(1,) * 2_000_000)))).refusal
        many = engine.AbortRequest(request_ids=["a"] * (MOST_ABORTED + 1))
        end = await refused(front.Abort(many))
    assert refusal.code is end.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.message.startswith("tokenized.input_ids: '2000000 tokens' is not allowed")
    assert end.message.startswith("request_ids: '10001 ids' is not allowed")


async def test_overload_is_told_before_any_work_with_the_time_to_wait():
    known = [await known_verifier(5.0)], []
    async with gateway_front(*known, limits=LASTING, max_sessions=1) as (made, front):
        call, _ = await begun(front, "first")
        refusal = (await answered(front.Generate(asked("second", **GREEDY)))).refusal
        call.cancel()
        await until_free(made)
        after = await answered(front.Generate(asked("second", seed=1, **GREEDY)))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert refusal.retry_after > 0
    assert after.tokens == text(1, 24)


async def test_a_draining_orchestrator_says_so_and_takes_no_more(slow):
    async with gateway_stub(slow.address) as front:
        before = await front.HealthCheck(engine.HealthCheckRequest())
        call, _ = await begun(front, "long")
        draining = asyncio.create_task(drain(slow.server, slow.door, slow.inference, Grace(4.0)))
        await until(lambda: slow.door.closed)
        during = await front.HealthCheck(engine.HealthCheckRequest())
        late = (await answered(front.Generate(asked("late", **GREEDY)))).refusal
        cut = (await answered(call)).refusal
        await draining
    assert (before.healthy, during.healthy) == (True, False)
    for end in (late, cut):
        assert (end.code, end.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert end.retry_after > 0
    # Nobody is told to resume what cannot be resumed.
    assert cut.message == "this orchestrator stops; send the request again"
    assert await stored_keys(slow) == []


async def test_a_request_that_takes_too_long_ends_by_its_deadline():
    brief = Limits(deadline=0.5, detach_grace=500.0)
    async with gateway_front([await known_verifier(5.0)], [], limits=brief) as (_, front):
        long = asked("long", seed=1, **GREEDY | {"max_tokens": 50_000})
        answer = await answered(front.Generate(long))
    assert answer.refusal.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert answer.refusal.message == "the time that a request may take is over"
    assert answer.tokens == text(1, len(answer.tokens))


async def test_without_a_verifier_in_time_a_request_may_be_sent_again():
    hasty = Limits(verifier_wait=0.5, detach_grace=500.0)
    async with gateway_front([await known_verifier(5.0)], [], limits=hasty) as (made, front):
        await made.verifiers[0].kill()
        await until(lambda: not made.pool.reports("verifier"))
        refusal = (await answered(front.Generate(asked("late", **GREEDY)))).refusal
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_WORKER")
    assert refusal.message == "no verifier could take the request in time; send it again"


async def test_a_reader_that_does_not_read_loses_its_session():
    options = {"limits": LASTING, "read_patience": 0.5, "narrow": NARROW}
    async with gateway_front([await known_verifier()], [], **options) as (made, front):
        call = front.Generate(asked("mine", seed=1, **GREEDY | {"max_tokens": 50_000}))
        await call.read()
        await until_free(made)
        end = await answered(call)
    assert end.refusal.code is grpc.StatusCode.UNAVAILABLE
    told = (end.refusal.reason, end.refusal.message)
    assert told == ("STREAM_STALLED", "nothing was read for 0.5 s")
    assert len(end.tokens) < 50_000


@pytest.fixture
def cut_short(monkeypatch):
    """Set once a message was not written to its end."""
    happened, hears = asyncio.Event(), Reader.hears

    async def watched(reader: Reader, message: Any) -> bool:
        try:
            return await hears(reader, message)
        except BaseException:
            happened.set()
            raise

    monkeypatch.setattr(Reader, "hears", watched)
    return happened


@pytest.mark.parametrize("aborted", [False, True], ids=["by its patience", "by an abort"])
async def test_a_first_message_that_is_cut_short_leaves_room_for_a_status(cut_short, aborted):
    options = {"limits": LASTING, "narrow": NARROW}
    patience = 60.0 if aborted else 0.5
    workers = [await known_verifier()], [await known_drafter(32)]
    front_of = gateway_front(*workers, **options, read_patience=patience)
    async with front_of as (made, front):
        # The whole answer is one message, larger than what may be sent before any is read.
        long = GREEDY | {"max_tokens": 25_000}
        call = front.Generate(asked("mine", stream=False, seed=1, **long))
        if aborted:
            await until(lambda: made.inference.active_sessions)
            await until(lambda: not made.inference.active_sessions, 240.0)
            await front.Abort(engine.AbortRequest(request_ids=["mine"]))
        await asyncio.wait_for(cut_short.wait(), 240.0)
        end = await asyncio.wait_for(answered(call), 60.0)
        await until(lambda: not made.door.streams.total)
    assert (end.error is None) if aborted else (end.refusal.reason == "STREAM_STALLED")


async def test_the_model_is_told_with_the_defaults_that_a_gateway_fills_in(running):
    ours = await running.client.model_info()
    async with gateway_stub(running.address) as front:
        info = await front.GetModelInfo(engine.GetModelInfoRequest())
    assert (info.served_model_name, info.model_path) == (ours.model, ours.model)
    assert (info.max_context_length, info.max_req_input_len) == (512, 511)
    assert (info.vocab_size, list(info.eos_token_ids)) == (VOCAB_SIZE, [EOS_ID])
    assert info.is_generation
    assert not info.supports_vision
    assert json.loads(info.default_sampling_params_json) == json.loads(
        ours.default_sampling_params_json
    )
    # No folder of the gateway's: it fetches the tokenizer that the verifiers have.
    assert info.tokenizer_path.endswith(ours.tokenizer_fingerprint)


async def test_loads_follow_the_sessions(slow):
    async with gateway_stub(slow.address) as front:

        async def load() -> engine.SchedulerLoad:
            told = await front.GetLoads(engine.GetLoadsRequest())
            assert (told.dp_rank_count, len(told.loads)) == (1, 1)
            return told.loads[0]

        idle = await load()
        calls = [(await begun(front, f"r{index}"))[0] for index in range(2)]
        info = await front.GetServerInfo(engine.GetServerInfoRequest())
        busy = await load()
        for call in calls:
            call.cancel()
        await until_free(slow)
    assert (idle.num_running_reqs, idle.num_waiting_reqs, idle.num_total_reqs) == (0, 0, 0)
    assert (busy.num_running_reqs, busy.num_waiting_reqs, busy.num_total_reqs) == (2, 0, 2)
    assert busy.max_running_requests == info.max_num_seqs == 1024
    assert (info.active_requests, info.server_type) == (2, "vllm-grpc")
    assert info.uptime_seconds > 0
    # This model tells of no thoughts.
    assert info.constrained_decoding_start == "first_token"


async def test_sessions_without_a_verifier_wait_and_what_is_held_is_told(running):
    async with gateway_stub(running.address) as front:
        stream = front.Generate(asked("held", **GREEDY | {"max_tokens": 400}))
        await stream.read()

        async def load() -> engine.SchedulerLoad:
            return (await front.GetLoads(engine.GetLoadsRequest())).loads[0]

        while not (told := await load()).num_used_tokens:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert 0 < told.token_usage < 1
        assert told.num_used_tokens < told.max_total_num_tokens
        stream.cancel()
        await until_free(running)
        await running.verifiers[0].kill()
        await until(lambda: not running.pool.reports("verifier"))
        call = front.Generate(asked("waits", **GREEDY))
        await until(lambda: running.inference.active_sessions)
        waiting = await load()
        call.cancel()
    assert (waiting.num_running_reqs, waiting.num_waiting_reqs) == (0, 1)


async def test_the_tokenizer_is_streamed_and_is_the_served_one(running):
    async with gateway_stub(running.address) as front:
        parts = [part async for part in front.GetTokenizer(common.GetTokenizerRequest())]
        again = [part async for part in front.GetTokenizer(common.GetTokenizerRequest())]
    data = b"".join(part.data for part in parts)
    assert (parts, parts[-1].sha256) == (again, hashlib.sha256(data).hexdigest())
    with zipfile.ZipFile(io.BytesIO(data)) as files:
        config = json.loads(files.read("tokenizer_config.json"))
        read = TokenizerBundle(
            fingerprint="read",
            tokenizer_json=files.read("tokenizer.json").decode(),
            chat_template=config["chat_template"],
            bos_token=config["bos_token"],
            eos_token=config["eos_token"],
        )
    turns = {"system": "be brief", "user": "the law of the drafter"}
    messages = [{"role": role, "content": content} for role, content in turns.items()]
    expected = tiny_tokenizer().apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    assert list(Tokenizer(read).encode_conversation(Conversation(messages))) == expected


NOT_SERVED = {
    "Embed": engine.EmbedRequest(),
    "FlushCache": common.FlushCacheRequest(),
    "StartProfile": common.StartProfileRequest(),
    "StopProfile": common.StopProfileRequest(),
    "SubscribeKvEvents": common.SubscribeKvEventsRequest(),
}


async def test_what_is_not_served_is_said_in_a_sentence(slow):
    async with gateway_stub(slow.address) as front:
        for name, message in NOT_SERVED.items():
            call = getattr(front, name)(message)
            end = await refused(call.read() if name == "SubscribeKvEvents" else call)
            assert end.code is grpc.StatusCode.UNIMPLEMENTED
            assert end.message.startswith(f"{name}: ")


ASKED = {
    "AbortRequest": {"request_ids"},
    # One rank there is, and one section of loads.
    "GetLoadsRequest": {"dp_rank", "include"},
    "HealthCheckRequest": set(),
    "GetModelInfoRequest": set(),
    "GetServerInfoRequest": set(),
}
"""Of what a method that is served takes beside a request to generate: every field."""
LEFT_OUT = {
    "GenerateStreamChunk": {"cached_tokens", "input_logprobs", "index"},
    "GenerateComplete": {"input_logprobs", "index", "media_identity"}
    | {"kv_transfer_params", "kv_transfer_params_json"},
    "OutputLogProbs": set(),
    "GetLoadsResponse": set(),
    "AbortResponse": set(),
    "HealthCheckResponse": set(),
}
"""Of what is answered: the fields that are always empty."""
TOLD = {
    "GenerateStreamChunk": {"token_ids", "prompt_tokens", "completion_tokens", "output_logprobs"},
    "GenerateComplete": {"output_ids", "finish_reason", "output_logprobs"}
    | {"prompt_tokens", "completion_tokens", "cached_tokens"}
    | {"matched_token_id", "matched_stop_str", "spec_accepted_tokens", "spec_draft_tokens"},
    "OutputLogProbs": {"token_logprobs", "token_ids", "top_logprobs"},
    "GetLoadsResponse": {"timestamp", "version", "dp_rank_count", "loads"},
    "AbortResponse": set(),
    "HealthCheckResponse": {"healthy", "message"},
}


def test_every_field_that_a_newer_gateway_brings_is_decided_on():
    messages = engine.DESCRIPTOR.message_types_by_name
    known = ASKED | {name: TOLD[name] | LEFT_OUT[name] for name in TOLD}
    for name, fields in known.items():
        assert {field.name for field in messages[name].fields} == fields, name


def test_every_method_of_the_service_is_served_or_refused_by_name():
    from orchestrator.frontdoor.vllm_gateway.servicer import VllmEngineServicer

    methods = engine.DESCRIPTOR.services_by_name["VllmEngine"].methods
    assert {method.name for method in methods} <= set(vars(VllmEngineServicer))
