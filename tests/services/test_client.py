"""The published client: events, whole generations, deadlines, callers that leave."""

import asyncio
import gc

import paceline
import pytest
from paceline import (
    Chunk,
    Complete,
    DraftSource,
    DraftSourceMetrics,
    FinishReason,
    Method,
    Origin,
    Started,
)
from paceline.v1 import inference_pb2 as pb

from tests.waiting import until


async def test_iterating_gives_typed_events_in_order(client):
    events = [event async for event in client.generate("hi", include_rounds=True)]
    assert [type(event) for event in events] == [Started, Chunk, Chunk, Complete]
    assert events[0] == Started("s", 3, 2**63)
    assert events[1].origins == (Origin.ACCEPTED, Origin.BONUS)
    assert events[1].rounds[0].rejection_sample_method is Method.GREEDY
    assert (events[1].pieces, events[1].rounds[0].draft_tokens) == (("a", "b"), 4)
    assert events[2].logprobs[0].top_logprobs == (-0.5,)
    assert events[3].speculation.acceptance_histogram == (1, 2)
    assert events[3].speculation.sources == (
        DraftSourceMetrics(DraftSource.LAWS, 4, 0),
        DraftSourceMetrics(DraftSource.UNKNOWN, 2, 1),
    )
    assert events[3].matched_stop == 2


async def test_awaiting_gives_the_whole_generation(client):
    generation = await client.generate("hi", request_id="mine")
    assert generation.text == "abc"
    assert generation.token_ids == (5, 6, 7)
    assert generation.finish_reason is FinishReason.STOP
    assert generation.usage.completion_tokens == 3
    assert generation.seed == 2**63
    assert generation.session_id == "mine"
    assert len(generation.logprobs) == len(generation.rounds) == 1


async def test_a_stream_iterated_in_part_can_be_awaited_for_the_whole(client, service):
    stream = client.generate("hi")
    async for event in stream:
        if isinstance(event, Chunk):
            break
    assert (await stream).token_ids == (5, 6, 7)
    assert (await stream).text == "abc"
    assert len(service.requests) == 1
    assert service.aborted == []


SAMPLING = {
    "temperature": 0.0,
    "top_p": 0.5,
    "top_k": 0,
    "min_p": 0.25,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.25,
    "repetition_penalty": 1.5,
    "max_tokens": 7,
    "min_tokens": 1,
    "stop_token_ids": [3],
    "ignore_eos": True,
    "seed": 2**64 - 1,
    "logit_bias": {4: -1.0},
    "allowed_token_ids": [3, 4],
    "bad_words": ["no", "never"],
    "logprobs": 0,
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
}
"""What goes by the same names in the client and on the wire."""


async def test_every_argument_arrives_in_its_field(client, service):
    await client.generate(
        messages=[{"role": "user", "content": "hi"}],
        request_id="r",
        model="m",
        stop="x",
        choice=["a", "b"],
        **SAMPLING,
        method="ngram",
        num_speculative_tokens=5,
        rejection_sample_method="coupled",
        disable_speculative_decoding=False,
        num_candidates=2,
        include_rounds=True,
        ephemeral=True,
        priority=-3,
        truncate_prompt_tokens=9,
    )
    assert service.requests == [
        pb.GenerateRequest(
            request_id="r",
            model="m",
            conversation=pb.Conversation(messages=[pb.Message(role="user", content="hi")]),
            sampling=pb.SamplingParams(
                stop=["x"], choice=pb.Choice(options=["a", "b"]), **SAMPLING
            ),
            speculation=pb.SpeculationParams(
                method="ngram",
                num_speculative_tokens=5,
                rejection_sample_method=pb.REJECTION_SAMPLE_METHOD_COUPLED,
                disable_speculative_decoding=False,
                num_candidates=2,
            ),
            include_rounds=True,
            ephemeral=True,
            priority=-3,
            truncate_prompt_tokens=9,
        )
    ]


async def test_what_is_left_out_is_absent_and_the_id_is_made_up(client, service):
    await client.generate("hi", temperature=None)
    await client.generate(tokens=[1, 2])
    first, second = service.requests
    assert len(first.request_id) == 32
    assert first.request_id != second.request_id
    assert first == pb.GenerateRequest(request_id=first.request_id, prompt="hi")
    assert second == pb.GenerateRequest(
        request_id=second.request_id, tokens=pb.TokenIds(ids=[1, 2])
    )


async def test_an_empty_input_is_sent_for_the_server_to_judge(client, service):
    await client.generate(tokens=[])
    await client.generate(messages=[])
    await client.generate("")
    inputs = [request.WhichOneof("input") for request in service.requests]
    assert inputs == ["tokens", "conversation", "prompt"]


async def test_a_deadline_is_sent_and_kept(client, service):
    service.hold = 2
    with pytest.raises(paceline.DeadlineExceeded):
        await client.generate("hi", timeout=2.0)
    # A header of whole milliseconds, rounded up.
    assert 0 < service.remaining[0] <= 2.05
    await asyncio.sleep(0.05)
    assert service.aborted == []


async def test_the_clients_own_timeout_holds_for_calls_without_one(client, service):
    client._timeout = 50.0
    await client.generate("hi")
    await client.generate("hi", timeout=20.0)
    assert 40 < service.remaining[0] <= 50.2
    assert service.remaining[1] < 30.2


async def wait_for_abort(service, session):
    async with asyncio.timeout(60):
        await service.was_aborted.wait()
    assert service.aborted == [session]


async def test_breaking_off_the_loop_aborts_the_session(client, service):
    service.hold = 2
    async for _ in client.generate("hi", request_id="mine"):
        break
    await wait_for_abort(service, "mine")


async def test_dropping_a_stream_midway_aborts_without_the_cycle_collector(client, service):
    gc.disable()
    try:
        stream = client.generate("hi", request_id="mine")
        await anext(aiter(stream))
        del stream
        await wait_for_abort(service, "mine")
    finally:
        gc.enable()


async def test_cancelling_the_caller_aborts_the_session(client, service):
    service.hold = 2

    async def caller():
        return await client.generate("hi", request_id="mine")

    task = asyncio.create_task(caller())
    await until(lambda: service.requests)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_for_abort(service, "mine")


async def test_leaving_the_stream_block_early_aborts_before_the_client_closes(client, service):
    async with client.generate("hi", request_id="mine") as stream:
        await anext(aiter(stream))
    await client.close()
    assert service.aborted == ["mine"]


async def test_a_caller_cancelled_between_events_aborts_before_the_client_closes(client, service):
    reached = asyncio.Event()

    async def caller():
        async with client:
            async for _ in client.generate("hi", request_id="mine"):
                reached.set()
                await asyncio.Event().wait()

    task = asyncio.create_task(caller())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert service.aborted == ["mine"]


async def test_a_stream_left_at_its_end_is_not_aborted(client, service):
    async for event in client.generate("hi"):
        if isinstance(event, Complete):
            break
    await asyncio.sleep(0.05)
    assert service.aborted == []


async def test_a_stream_that_is_never_used_costs_nothing(client, service):
    client.generate("hi")
    await asyncio.sleep(0.02)
    assert (service.requests, service.aborted) == ([], [])


async def test_a_stream_without_its_end_is_an_error(client, service):
    service.script = service.script[:2]
    client._patience = 0.0
    with pytest.raises(paceline.Unavailable, match="cut short"):
        await client.generate("hi")


async def test_an_event_of_a_newer_server_is_skipped(client, service):
    service.script.insert(1, pb.GenerateResponse())
    assert (await client.generate("hi")).text == "abc"


async def test_questions_are_answered_with_records(client, service):
    session = await client.get_session("s")
    assert (session.status, session.committed_tokens) == (paceline.SessionStatus.PAUSED, 4)
    assert (await client.model_info()).eos_token_ids == (1, 2)
    assert (await client.server_info()).workers[0].methods == ("ngram",)
    await client.abort("s")
    assert service.aborted == ["s"]


CALL = {"name": "tell", "arguments": {"n": 1}}
WRITTEN, CALLED = '{"n": 1}', {"function": CALL}


async def test_conversations_carry_tools_calls_and_results(client, service):
    tool = {"type": "function", "function": {"name": "tell", "description": "ü"}}
    calls = [{"id": "c1", "type": "function", "function": CALL}]
    calls.append({"function": {"name": "tell", "arguments": WRITTEN}})
    # As the OpenAI client's `model_dump()` has them, with None for what there is not.
    messages = [
        {"role": "user", "content": "hi", "refusal": None, "annotations": []},
        {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": "so"},
        {"role": "tool", "content": "1", "tool_call_id": "c1", "name": "tell"},
    ]
    await client.generate(
        messages=messages,
        tools=[tool],
        chat_template_kwargs={"enable_thinking": False},
        add_generation_prompt=True,
        continue_final_message=False,
    )
    called = [pb.ToolCall(id="c1", name="tell", arguments=WRITTEN)]
    called.append(pb.ToolCall(name="tell", arguments=WRITTEN))
    assert service.requests[-1].conversation == pb.Conversation(
        messages=[
            pb.Message(role="user", content="hi"),
            pb.Message(
                role="assistant", null_content=True, tool_calls=called, reasoning_content="so"
            ),
            pb.Message(role="tool", content="1", tool_call_id="c1", name="tell"),
        ],
        tools=[
            pb.Tool(json='{"type": "function", "function": {"name": "tell", "description": "ü"}}')
        ],
        chat_template_kwargs='{"enable_thinking": false}',
        add_generation_prompt=True,
        continue_final_message=False,
    )


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"tools": [{"x": float("nan")}]}, "conversation.tools"),
        ({"tools": [{"x": object()}]}, "conversation.tools"),
        ({"chat_template_kwargs": {"x": float("inf")}}, "conversation.chat_template_kwargs"),
        ({"messages": [{"tool_calls": [{"id": "c"}]}]}, "conversation.messages"),
        ({"messages": [{"tool_calls": [{"function": {}}]}]}, "conversation.messages"),
        (
            {"messages": [{"tool_calls": [{"type": "x", "function": CALL}]}]},
            "conversation.messages",
        ),
        ({"messages": [{"role": "user", "images": 1}]}, "conversation.messages"),
    ],
)
async def test_what_a_conversation_cannot_hold_is_refused_at_once(client, wrong, field):
    with pytest.raises(paceline.InvalidArgument) as caught:
        client.generate(**{"messages": [{"role": "user", "content": "hi"}]} | wrong)
    assert caught.value.violations[0].field == field


async def test_tools_need_messages(client):
    with pytest.raises(TypeError, match="continue_final_message, tools: only with messages"):
        client.generate("hi", tools=[], continue_final_message=True)


@pytest.mark.parametrize(
    ("asked", "field", "said"),
    [
        (
            {"regex": "a", "json_schema": "{}"},
            "sampling.regex",
            "json_schema and regex are given; allowed is one response format",
        ),
        (
            {"allowed_token_ids": []},
            "sampling.allowed_token_ids",
            "allowed is at least one token id; left out: any token",
        ),
    ],
)
async def test_what_a_message_would_lose_without_a_word_is_refused(client, asked, field, said):
    with pytest.raises(paceline.InvalidArgument, match=said) as caught:
        client.generate("hi", **asked)
    assert caught.value.violations[0].field == field


async def test_the_best_of_several_is_not_chosen(client):
    with pytest.raises(TypeError, match="best_of: ask for n completions and compare them"):
        client.generate("hi", best_of=3)
