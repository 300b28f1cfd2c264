"""Resume, abort, retry and refuse, through the client and a real store."""

import asyncio

import pytest
from paceline import (
    AlreadyExists,
    Chunk,
    Complete,
    FailedPrecondition,
    FinishReason,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
    SessionStatus,
    Started,
)

from tests.integration.cluster import PROMPT, cluster, plain, start_drafter, start_verifier
from tests.integration.front_door import leave_in_the_store
from tests.models import tiny_tokenizer
from tests.waiting import until

GREEDY = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True}


async def test_a_finished_session_is_read_again_from_any_offset():
    async with cluster([await start_verifier()], [await start_drafter()]) as running:
        run = await running.client.generate(PROMPT, request_id="done", **GREEDY)
        for offset in (0, 1, 17, 40):
            assert (await running.client.resume("done", offset)).token_ids == run.token_ids[offset:]
        events = [event async for event in running.client.resume("done", 17)]
        chunks = "".join(event.text for event in events if isinstance(event, Chunk))
        assert run.text.endswith(chunks)
        assert isinstance(events[-1], Complete)
        assert events[-1].text == run.text
        with pytest.raises(OutOfRange):
            await running.client.resume("done", 41)


async def test_two_readers_of_one_live_session_see_the_same():
    async with cluster([await start_verifier()], []) as running:
        asked = {"request_id": "r", **GREEDY}
        first = asyncio.create_task(_collect(running.client.generate(PROMPT, **asked)))
        await asyncio.sleep(0.05)
        second = await _collect(running.client.generate(PROMPT, **asked))
        assert (await first) == second == plain(PROMPT, 40)


async def _collect(stream) -> list[int]:
    return [one async for event in stream if isinstance(event, Chunk) for one in event.token_ids]


async def test_a_conversation_with_tools_is_the_prompt_that_transformers_makes_of_it():
    tool = {"type": "function", "function": {"name": "tell", "parameters": {"type": "object"}}}
    call = {"id": "c1", "type": "function", "function": {"name": "tell", "arguments": {"n": 1}}}
    talk = [
        {"role": "user", "content": "tell"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "the law"},
    ]
    prompt = tiny_tokenizer().apply_chat_template(
        talk, tools=[tool], add_generation_prompt=True, return_dict=False
    )
    asked = {"messages": talk, "tools": [tool], "request_id": "talk", "max_tokens": 12}
    async with cluster([await start_verifier()], [await start_drafter()]) as running:
        whole = await running.client.generate(**asked, temperature=0.0)
        known = await running.client.generate(tokens=prompt, max_tokens=12, temperature=0.0)
        assert whole.token_ids == known.token_ids
        assert whole.usage.prompt_tokens == len(prompt)
        again = await running.client.generate(**asked, temperature=0.0)
        assert again.token_ids == whole.token_ids
        rest = await running.client.resume("talk", offset=5)
        assert rest.token_ids == whole.token_ids[5:]
        with pytest.raises(AlreadyExists):
            await running.client.generate(**asked | {"tools": [tool] * 2}, temperature=0.0)


async def test_an_abort_ends_the_stream_and_frees_the_workers():
    async with cluster([await start_verifier()], [await start_drafter()]) as running:
        events = []
        options = {**GREEDY, "max_tokens": 400}
        async for event in running.client.generate(PROMPT, request_id="gone", **options):
            events.append(event)
            if len(events) == 4:
                await running.client.abort("gone")
        assert isinstance(events[-1], Complete)
        assert events[-1].finish_reason is FinishReason.ABORT
        assert (await running.client.get_session("gone")).status is SessionStatus.ABORTED
        workers = (*running.verifiers, *running.drafters)
        await until(lambda: not any(w.host.progress().sessions for w in workers))
        with pytest.raises(FailedPrecondition):
            await running.client.resume("gone", 0)


async def test_stop_strings_stop_tokens_and_eos_end_the_output():
    async with cluster([await start_verifier()], [await start_drafter()]) as running:
        whole = await running.client.generate(PROMPT, **GREEDY)
        word = whole.text[10:14]
        cut = await running.client.generate(PROMPT, stop=[word], **GREEDY)
        kept = await running.client.generate(
            PROMPT, stop=[word], include_stop_str_in_output=True, **GREEDY
        )
        token = whole.token_ids[12]
        stopped = await running.client.generate(PROMPT, stop_token_ids=[token], **GREEDY)
    before = whole.text[: whole.text.index(word)]
    assert (cut.text, cut.finish_reason) == (before, FinishReason.STOP)
    assert kept.text == before + word
    assert stopped.token_ids == whole.token_ids[: whole.token_ids.index(token) + 1]
    assert stopped.finish_reason is FinishReason.STOP
    assert whole.finish_reason is FinishReason.LENGTH


BAD = [
    ({"prompt": ""}, "prompt"),
    ({"tokens": [1, 320]}, "tokens.ids[1]"),
    ({"temperature": float("nan")}, "sampling.temperature"),
    ({"max_tokens": 5, "min_tokens": 6}, "sampling.min_tokens"),
    ({"logit_bias": {320: 1.0}}, "sampling.logit_bias[320]"),
    ({"model": "unknown"}, "model"),
    ({"messages": [{"role": "r" * 65, "content": "hi"}]}, "conversation.messages[0].role"),
    ({"messages": [{"role": "user"}], "tools": [[]]}, "conversation.tools[0].json"),
    ({"num_candidates": 3}, "speculation.num_candidates"),
]
"""Of each part of a request one or two: tests/orchestrator/test_requests_refused.py has all."""


async def test_a_bad_request_names_its_field_and_creates_nothing():
    named = []
    async with cluster([await start_verifier()], []) as running:
        for options, _ in BAD:
            given = {"tokens", "messages", "prompt"} & set(options)
            with pytest.raises(InvalidArgument) as refused:
                await running.client.generate(
                    request_id="bad", **(options if given else {"prompt": PROMPT, **options})
                )
            named.append([violation.field for violation in refused.value.violations])
            with pytest.raises(NotFound):
                await running.client.get_session("bad")
        assert running.inference.active_sessions == 0
    assert named == [[field] for _, field in BAD]


async def test_tokens_in_flight_beyond_the_limit_are_refused_before_any_work():
    # The prompt and what may be generated count; the first session takes most of it.
    async with cluster([await start_verifier()], [], max_tokens_in_flight=500) as running:
        options = {**GREEDY, "max_tokens": 350}
        async for event in running.client.generate(PROMPT, **options):
            if isinstance(event, Started):
                with pytest.raises(ResourceExhausted) as refused:
                    await running.client.generate(PROMPT, request_id="second", **options)
                assert refused.value.retry_after > 0
                break
        with pytest.raises(NotFound):
            await running.client.get_session("second")
        with pytest.raises(InvalidArgument, match="max_tokens"):
            await running.client.generate(PROMPT, **{**GREEDY, "max_tokens": 499})


async def test_sessions_close_to_the_limit_of_tokens_are_served_without_speculation():
    workers = [await start_verifier()], [await start_drafter()]
    async with cluster(*workers, max_tokens_in_flight=100) as running:
        prompt = len(tiny_tokenizer().encode(PROMPT))
        full = await running.client.generate(PROMPT, **{**GREEDY, "max_tokens": 95 - prompt})
        half = await running.client.generate(PROMPT, **{**GREEDY, "max_tokens": 10})
    assert full.speculation.num_draft_tokens == 0
    assert half.speculation.num_draft_tokens > 0
    assert list(full.token_ids) == plain(PROMPT, 95 - prompt)


async def test_two_resumes_at_once_of_a_paused_session_share_one_owner():
    async with cluster([await start_verifier()], []) as running:
        key = await leave_in_the_store(running, "stored", plain(PROMPT, 10))
        both = await asyncio.gather(
            running.client.resume("stored", 10), running.client.resume("stored", 0)
        )
        stored = await running.store.get(key)
    assert stored.term == 2
    assert [list(run.token_ids) for run in both] == [plain(PROMPT, 40)[10:], plain(PROMPT, 40)]


async def test_a_session_whose_owner_died_before_saying_that_it_ended_has_ended():
    async with cluster([await start_verifier()], []) as running:
        key = await leave_in_the_store(running, "stored", plain(PROMPT, 40))
        run = await running.client.resume("stored", 0)
        assert (await running.store.get(key)).status.name == "FINISHED"
    assert (list(run.token_ids), run.finish_reason) == (plain(PROMPT, 40), FinishReason.LENGTH)


async def test_what_the_server_says_of_itself():
    async with cluster(
        [await start_verifier()], [await start_drafter(methods=("model", "ngram"))]
    ) as running:
        model, info = await running.client.model_info(), await running.client.server_info()
    assert (model.vocab_size, model.has_chat_template) == (320, True)
    assert (model.chat_template_takes_tools, model.chat_template_kwargs) == (True, ())
    assert {worker.role for worker in info.workers} == {"verifier", "drafter"}
    assert info.default_method == "model"
