"""Each row of the page's tables of requests: what the real smg passes on, and what comes back."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import openai
import pytest
import pytest_asyncio
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from orchestrator.frontdoor.vllm_gateway import extensions
from tests.gateway.overheard import CHAT, OWN_DEFAULTS, Front, front_of, rows_under
from tests.waiting import until

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

Check = Callable[[Front], Awaitable[None]]
SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "tell", "parameters": SCHEMA}}]
TELL: Any = {"type": "function", "function": {"name": "tell"}}
WITH_USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
ON: dict[str, Any] = {"extra_body": {"ignore_eos": True}}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def front(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Front]:
    async with front_of(tmp_path_factory.mktemp("smg") / "log") as made:
        yield made


async def lengths(front: Front) -> None:
    for ask, name in (
        (front.chat, "max_tokens"),
        (front.chat, "max_completion_tokens"),
        (front.complete, "max_tokens"),
    ):
        done = await ask(**{"max_tokens": openai.omit, name: 6}, **ON)
        assert front.asked.max_tokens == 6 == done.usage.completion_tokens
    done = await front.complete(max_tokens=openai.omit, **ON)
    assert not front.asked.HasField("max_tokens")
    assert done.usage.completion_tokens == 256


async def the_same_parameters(front: Front) -> None:
    named = {"temperature": 0.5, "top_p": 0.5, "frequency_penalty": 0.25, "presence_penalty": 0.75}
    extended = {"top_k": 7, "min_p": 0.125, "repetition_penalty": 1.5}
    extra = {**extended, "ignore_eos": True, "stop_token_ids": [7, 9]}
    for ask in (front.chat, front.complete):
        await ask(**named, extra_body=extra)
        passed_on = {name: getattr(front.asked, name) for name in {**named, **extra}}
        assert passed_on | {"stop_token_ids": list(front.asked.stop_token_ids)} == named | extra
        await ask()
        own = {name: getattr(front.asked, name) for name in OWN_DEFAULTS if name != "do_sample"}
        assert own == {name: OWN_DEFAULTS[name] for name in own}


async def seeds(front: Front) -> None:
    ours = await front.running.client.generate("the law", seed=5, max_tokens=12, ignore_eos=True)
    for given, passed_on in (
        (5, 5),
        (2**31 - 1, 2**31 - 1),
        (2**31, 2**31 - 1),
        (2**40, 2**31 - 1),
    ):
        done = await front.complete(seed=given, max_tokens=12, **ON)
        assert front.asked.seed == passed_on
        if given == 5:
            assert done.usage.completion_tokens == len(ours.token_ids)
            assert done.choices[0].text == ours.text


async def stops(front: Front) -> None:
    letters: dict[str, Any] = {"extra_body": {"regex": "[a-h]{30}"}, "max_tokens": 40, "seed": 1}
    text = (await front.complete(**letters)).choices[0].text
    stop = text[5:8]
    for ask in (front.complete, front.chat):
        await ask(stop=[stop, "zz"], **letters)
        assert list(front.asked.stop) == [stop, "zz"]
    cut = await front.complete(stop=stop, **letters)
    parts = [part async for part in await front.complete(stop=stop, stream=True, **letters)]
    streamed = "".join(part.choices[0].text for part in parts if part.choices)
    assert cut.choices[0].text == streamed == text[: text.index(stop)]


async def response_formats(front: Front) -> None:
    asked: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    await front.chat(response_format=asked)
    assert json.loads(front.asked.json_schema) == SCHEMA
    await front.chat(response_format={"type": "json_object"})
    assert json.loads(front.asked.json_schema) == {"type": "object"}
    await front.complete(extra_body={"response_format": {"type": "json_object"}})
    assert front.asked.WhichOneof("constraint") is None


async def expressions(front: Front) -> None:
    for ask in (front.chat, front.complete):
        await ask(extra_body={"regex": "b{3}"})
        assert front.asked.regex == "b{3}"
    done = await front.complete(extra_body={"regex": "b{3}"}, max_tokens=9)
    assert done.choices[0].text == "bbb"


async def grammars(front: Front) -> None:
    for ask in (front.chat, front.complete):
        await ask(extra_body={"ebnf": 'root ::= "bb"'})
        assert front.asked.grammar == 'root ::= "bb"'
    done = await front.complete(extra_body={"ebnf": 'root ::= "bb"'}, max_tokens=9)
    assert done.choices[0].text == "bb"


async def tags(front: Front) -> None:
    for ask in (front.chat, front.complete):
        await ask(extra_body={"structural_tag": "{}"})
        assert not front.asked.HasField("structural_tag")


async def tools(front: Front) -> None:
    await front.chat(tools=TOOLS, tool_choice="auto")
    assert front.asked.WhichOneof("constraint") is None
    for choice in ("required", TELL):
        called = await _called(front, choice)
        assert called.function.name == "tell"
        assert json.loads(called.function.arguments)["n"] in (1, 2)
        schema = json.loads(front.asked.json_schema)
        assert schema == SCHEMA if choice is TELL else schema["type"] == "array"


async def _called(front: Front, choice: Any) -> Any:
    """What a random model asks to call: it wanders, and not every one of its texts ends.

    Those of the first two seeds did where they were tried.
    """
    for seed in (3, 7, *range(20)):
        done = await front.chat(tools=TOOLS, tool_choice=choice, seed=seed, max_tokens=300)
        assert front.asked.WhichOneof("constraint") == "json_schema"
        if done.choices[0].finish_reason == "tool_calls":
            [called] = done.choices[0].message.tool_calls
            return called
    raise AssertionError("no text came to its end")


async def conversations_with_tools(front: Front) -> None:
    call = {"name": "tell", "arguments": '{"n": 2, "a": "ü"}'}
    talk: list[Any] = [
        {"role": "user", "content": "tell"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "2"},
    ]
    await front.chat(messages=talk, tools=TOOLS)
    [request] = front.ears.asked
    ours = front.running.client.generate(messages=talk, tools=TOOLS, max_tokens=1)
    assert len(request.tokenized.input_ids) == (await ours).usage.prompt_tokens


async def log_probabilities(front: Front) -> None:
    done = await front.chat(logprobs=True, top_logprobs=3, **ON)
    assert front.asked.logprobs == 3
    # A row a token, but for bytes of a character that the end cuts off, three at most.
    rows = done.choices[0].logprobs.content
    assert done.usage.completion_tokens == 4
    assert 4 - 3 <= len(rows) <= 4
    assert [len(row.top_logprobs) for row in rows] == [3] * len(rows)
    with pytest.raises(openai.BadRequestError):
        await front.chat(logprobs=True, top_logprobs=21)
    done = await front.complete(logprobs=2, **ON)
    assert done.choices[0].logprobs is None


async def usage(front: Front) -> None:
    fixed: dict[str, Any] = {"temperature": 0.0, "max_tokens": 40, **ON}
    for ask in (front.chat, front.complete):
        whole = (await ask(**fixed)).usage
        [streamed] = [part.usage async for part in await ask(**fixed, **WITH_USAGE) if part.usage]
        for told in (whole, streamed):
            drafts = told.completion_tokens_details
            assert told.completion_tokens == 40
            assert told.total_tokens == told.prompt_tokens + 40
            assert drafts.rejected_prediction_tokens > 0
            assert 0 <= drafts.accepted_prediction_tokens < 40
    # What the engine says of the same request.
    ours = await front.running.client.generate(
        "the law", temperature=0.0, max_tokens=40, **ON["extra_body"]
    )
    assert whole.prompt_tokens == ours.usage.prompt_tokens


async def several_prompts(front: Front) -> None:
    done = await front.complete(prompt=["the law", "the large verifier checks"])
    assert [choice.index for choice in done.choices] == [0, 1]
    ids = [request.request_id for request in front.ears.asked]
    assert len(set(ids)) == 2
    assert all(one.startswith(done.id) for one in ids)


async def several_completions(front: Front) -> None:
    letters = {"ignore_eos": False, "regex": "[a-h]{2,60}"}
    warm: dict[str, Any] = {"temperature": 1.0, "max_tokens": 60, "extra_body": letters}
    alone = [await front.complete(seed=seed, **warm) for seed in range(5, 11)]
    texts = [one.choices[0].text for one in alone]
    # Of unlike length: they do not end in the order in which they are numbered.
    assert sorted(texts, key=len) != texts
    assert len(set(texts)) > 3
    told = [""] * 6
    async for part in await front.complete(n=6, seed=5, stream=True, **warm):
        for choice in part.choices:
            told[choice.index] += choice.text
    assert told == texts
    for name in ("", "", "four", "four"):
        named = {"X-Request-Id": f"paceline(session={name})"} if name else {}
        done = await front.complete(n=6, seed=5, extra_headers=named, **warm)
        assert front.asked.n == 6
        assert {one.index: one.text for one in done.choices} == dict(enumerate(texts))
    chats = [await front.chat(seed=seed, **warm) for seed in range(5, 11)]
    chat = await front.chat(n=6, seed=5, **warm)
    assert [one.index for one in chat.choices] == list(range(6))
    said = [one.choices[0].message.content for one in chats]
    assert [one.message.content for one in chat.choices] == said


async def echoes(front: Front) -> None:
    fixed: dict[str, Any] = {"seed": 1, "max_tokens": 4, "extra_body": {"regex": "[a-h]{8}"}}
    said = (await front.complete(**fixed)).choices[0].text
    for more, whole in (({"echo": True}, f"the law{said}"), ({"suffix": "z"}, f"{said}z")):
        done = await front.complete(logprobs=2, **more, **fixed)
        assert done.choices[0].text == whole
        assert done.choices[0].logprobs is None
        assert done.usage.completion_tokens <= 4
        [request] = front.ears.asked
        assert not request.sampling_params.HasField("prompt_logprobs")
        parts = [part async for part in await front.complete(stream=True, **more, **fixed)]
        assert "".join(part.choices[0].text for part in parts if part.choices) == whole
    several = await front.complete(echo=True, n=2, **fixed)
    assert all(choice.text.startswith("the law") for choice in several.choices)
    nothing = front.complete(echo=True, logprobs=1, max_tokens=0)
    await refused(nothing, 400, "sampling_params.max_tokens: 0 is not allowed; allowed is 1 to")
    await refused(front.complete(prompt=[70, 71]), 400, "prompt")


async def least_tokens(front: Front) -> None:
    await front.complete(extra_body={"min_tokens": 3})
    assert front.asked.min_tokens == 3
    await front.chat(extra_body={"min_tokens": 3})
    assert front.asked.min_tokens == 0


async def dropped(front: Front) -> None:
    for ask in (front.complete, front.chat):
        await ask(logit_bias={"5": 3}, extra_body={"best_of": 3, "truncate_prompt_tokens": 2})
        assert not front.asked.logit_bias
        assert not front.asked.HasField("truncate_prompt_tokens")
        assert front.asked.n == 1


TAKEN: dict[str, Check] = {
    "`max_tokens`, `max_completion_tokens`": lengths,
    "`temperature`, `top_p`, `frequency_penalty`, `presence_penalty`, and as extensions `top_k`, "
    "`min_p`, `repetition_penalty`, `ignore_eos`, `stop_token_ids`": the_same_parameters,
    "`seed`": seeds,
    "`stop`": stops,
    "`response_format`: `json_schema`, `json_object`": response_formats,
    "`regex`, an extension": expressions,
    "`ebnf`, an extension": grammars,
    "`structural_tag`, an extension": tags,
    "`tool_choice`: `required`, or one function": tools,
    "`tools`, `tool_calls`, messages of role `tool`": conversations_with_tools,
    "`logprobs`, `top_logprobs` of a chat": log_probabilities,
    "`usage`": usage,
    "several prompts": several_prompts,
    "`n`": several_completions,
    "`echo`, `suffix` of a completion": echoes,
    "`min_tokens`": least_tokens,
    "`logit_bias`, `best_of`, `truncate_prompt_tokens`": dropped,
}


async def refused(call: Awaitable[Any], status: int, *words: str) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        await call
    assert caught.value.status_code == status
    assert [word for word in words if word not in str(caught.value)] == []


async def several_outputs(front: Front) -> None:
    await refused(front.complete(n=17), 400, "sampling_params.n: 17 is not allowed")
    await refused(front.chat(n=11), 400)
    assert not front.ears.asked


async def forms_without_sense(front: Front) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "no"}}}
    await refused(front.chat(response_format=form), 400, "sampling_params.json_schema: ")
    await refused(front.complete(extra_body={"regex": "("}), 400, "sampling_params.regex: ")
    await refused(front.chat(extra_body={"ebnf": "root"}), 400, "sampling_params.grammar: ")


async def media(front: Front) -> None:
    for kind in ("image", "video", "audio"):
        part = {"type": f"{kind}_url", f"{kind}_url": {"url": "data:;base64,AAAA"}}
        await refused(front.chat(messages=[{"role": "user", "content": [part]}]), 400)
        assert not front.ears.asked


async def values_out_of_range(front: Front) -> None:
    too_long = front.complete(max_tokens=9999)
    await refused(too_long, 400, "sampling_params.max_tokens: 9999 is not allowed")
    bad = front.complete(extra_body={"stop_token_ids": [999_999]})
    await refused(bad, 400, "sampling_params.stop_token_ids[0]: 999999 is not allowed")


async def embeddings(front: Front) -> None:
    call = front.client.embeddings.create(model=front.model, input="the law")
    await refused(call, 501, "makes no embeddings")


async def what_smg_drops(front: Front) -> None:
    extra = {"prompt_logprobs": 2}
    for ask in (front.chat, front.complete):
        await ask(extra_body=extra)
        for name in extra:
            assert not front.asked.HasField(name)


async def what_is_the_gateways_affair(front: Front) -> None:
    extra = {"kv_transfer_params": {"remote_host": "a"}, "data_parallel_rank": 1}
    await front.complete(extra_body=extra)
    [request] = front.ears.asked
    for name in (*extra, "kv_transfer_params_json"):
        assert not request.HasField(name)


REFUSED: dict[str, Check] = {
    "`n` above 16, of a chat above 10": several_outputs,
    "a schema, expression or grammar that cannot be compiled in bounds": forms_without_sense,
    "images, video, audio": media,
    "a value out of its range, more tokens than the context holds": values_out_of_range,
    "`/v1/embeddings`": embeddings,
    "log probabilities of the prompt ([scores](clients.md#scores) instead)": what_smg_drops,
    "prefill elsewhere, a rank of data parallelism": what_is_the_gateways_affair,
}


NAMED: dict[str, Any] = {"X-Request-Id": "paceline(session=sky-1)"}
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
AGENT = {"user-agent"}


def ids(front: Front) -> list[str]:
    """The ids of the requests that came."""
    return [request.request_id for request in front.ears.asked]


async def id_headers(front: Front) -> None:
    for header in ("X-Request-Id", "X-Correlation-Id", "X-Trace-Id", "Request-Id"):
        for ask in (front.chat, front.complete):
            await ask(extra_headers={header: "paceline(method=model)"})
            [told] = ids(front)
            assert UUID.fullmatch(told.removeprefix("paceline(method=model)-"))
    await front.complete(prompt=["the law", "the"], extra_headers={"X-Request-Id": "a"})
    assert sorted(one[:5] for one in ids(front)) == ["a-p0-", "a-p1-"]
    await front.chat(extra_headers={"X-Request-Id": "a" * 129})
    assert ids(front)[0].startswith("chatcmpl-")
    for path, body in elsewhere(front).items():
        front.ears.asked.clear()
        await front.client.post(
            path, body=body, cast_to=object, options={"headers": {"X-Request-Id": "an-id"}}
        )
        assert UUID.fullmatch(ids(front)[0].removeprefix("an-id-"))


def elsewhere(front: Front) -> dict[str, dict[str, Any]]:
    """Requests of smg's other interfaces, by path."""
    generate = str(front.client.base_url).replace("/v1/", "/generate")
    few = {"model": front.model}
    return {
        "/responses": few | {"input": "the law", "max_output_tokens": 4},
        "/messages": few | {"messages": CHAT, "max_tokens": 4},
        generate: few | {"text": "the law", "sampling_params": {"max_new_tokens": 4}},
    }


async def request_ids(front: Front) -> None:
    for ask in (front.chat, front.complete):
        await ask(extra_body={"rid": "paceline(method=model)"})
        assert ids(front) == ["paceline(method=model)"]
    await front.complete(prompt=["the law", "the"], extra_body={"rid": "a"})
    assert sorted(ids(front)) == ["a-p0", "a-p1"]
    responses = elsewhere(front)["/responses"] | {"rid": "a"}
    await refused(front.client.post("/responses", body=responses, cast_to=object), 400, "rid")


async def other_headers(front: Front) -> None:
    sent = {
        "x-paceline-session": "a",
        "Idempotency-Key": "b",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "baggage": "c=d",
        "X-SMG-Routing-Key": "e",
        "X-SMG-Target-Worker": "0",
    }
    for ask in (front.chat, front.complete):
        front.ears.metadata.clear()
        await ask(extra_headers=sent)
        assert {key for told in front.ears.metadata for key in told} == AGENT


def no_fields(*names: str) -> Check:
    values = {"metadata": {"a": "b"}, "store": True, "service_tier": "flex", "priority": 5}
    values |= {"prediction": {"type": "content", "content": "the law"}, "vllm_xargs": {"a": "b"}}
    values |= {name: {"a": "b"} for name in ("session_params", "custom_params", "speculation")}

    async def check(front: Front) -> None:
        for ask in (front.chat, front.complete):
            await ask(seed=1)
            [usual] = front.ears.asked
            await ask(seed=1, extra_body={name: values.get(name, "a") for name in names})
            [told] = front.ears.asked
            told.request_id = usual.request_id
            assert told == usual

    return check


async def suffixes(front: Front) -> None:
    for suffix in (":nospec", "@nospec", "-nospec"):
        ask = front.client.chat.completions.create(model=front.model + suffix, messages=CHAT)
        await refused(ask, 404)
    assert "model" not in vllm.GenerateRequest.DESCRIPTOR.fields_by_name


async def metadata_behind(front: Front) -> None:
    told = await front.client.chat.completions.with_raw_response.create(
        model=front.model, messages=CHAT, max_tokens=4
    )
    assert not [name for name in told.headers if "paceline" in name]


SENT: dict[str, Check] = {
    "header `X-Request-Id`, `X-Correlation-Id`, `X-Trace-Id` or `Request-Id` "
    "(`smg launch --request-id-headers` chooses)": id_headers,
    "`rid`, a field that smg adds to chats, completions and `/generate`": request_ids,
    "other headers, such as `x-paceline-session`, `Idempotency-Key`, `traceparent`, `baggage`, "
    "`X-SMG-Routing-Key`, `X-SMG-Target-Worker`": other_headers,
    "`user`, `metadata`, `service_tier`, `safety_identifier`, `prompt_cache_key`, `store`, "
    "`prediction`": no_fields(
        "user",
        "metadata",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "store",
        "prediction",
    ),
    "`vllm_xargs`, `priority`, `request_id`, `session_id`, `session_params`, `cache_salt`, "
    "`custom_params`, `speculation`": no_fields(
        "vllm_xargs",
        "priority",
        "request_id",
        "session_id",
        "session_params",
        "cache_salt",
        "custom_params",
        "speculation",
    ),
    "`lora_path`, `lora_id`": no_fields("lora_path", "lora_id"),
    "a suffix of the model's name": suffixes,
    "metadata behind the answer, `x-paceline-acceptance`": metadata_behind,
}


@pytest.mark.parametrize("row", SENT)
async def test_what_a_client_sends_besides_reaches_the_orchestrator_as_the_page_says(
    front: Front, row: str
):
    await SENT[row](front)


async def test_every_way_to_speculate_on_the_page_can_be_said():
    named = [name for row in rows_under("name") for name in re.findall(r"`(\w+)`", row[0])]
    assert set(named) == set(extensions.READERS)


async def test_a_named_session_is_computed_once_and_told_to_all_who_ask_for_it(front: Front):
    ask: dict[str, Any] = {"seed": 3, "max_tokens": 40, "extra_headers": NAMED, **ON}
    first = await front.complete(**ask)
    steps = front.running.inference.totals().target_steps
    again = await front.complete(**ask)
    parts = [part async for part in await front.complete(**ask, **WITH_USAGE)]
    streamed = "".join(part.choices[0].text for part in parts if part.choices)
    assert first.choices[0].text == again.choices[0].text == streamed
    assert front.running.inference.totals().target_steps == steps
    assert (await front.running.client.get_session("sky-1")).committed_tokens == 40
    await refused(front.complete(**ask | {"seed": 4}), 409, "sky-1")


async def test_a_client_that_left_a_named_session_comes_back_to_it(front: Front):
    ask: dict[str, Any] = {"seed": 3, "max_tokens": 200, **ON}
    ask["extra_headers"] = {"X-Request-Id": "paceline(session=sky-2)"}
    stream = await front.complete(stream=True, **ask)
    await anext(aiter(stream))
    await stream.close()
    await until(lambda: not front.running.door.streams.total)
    back = await front.complete(**ask)
    ours = await front.running.client.generate("the law", seed=3, max_tokens=200, ignore_eos=True)
    assert back.usage.completion_tokens == 200
    # smg leaves out the bytes of a character that the end cuts off.
    assert ours.text.startswith(back.choices[0].text)
    assert len(ours.text) - len(back.choices[0].text) < 4


@pytest.mark.parametrize("stream", [False, True])
async def test_usage_has_the_draft_tokens_of_this_very_request(front: Front, stream: bool):
    for said in ("num_speculative_tokens=3", "disable_speculative_decoding=true"):
        for ask in (front.chat, front.complete):
            before = front.running.inference.totals()
            told = await drafts(ask, stream, said)
            after = front.running.inference.totals()
            accepted = after.accepted_tokens - before.accepted_tokens
            drafted = after.draft_tokens - before.draft_tokens
            assert told == (accepted, drafted - accepted)
            assert bool(drafted) is ("disable" not in said)


async def drafts(ask: Callable[..., Any], stream: bool, said: str) -> tuple[int, int]:
    """Draft tokens accepted and rejected, as a request's usage says; nothing is none."""
    params: dict[str, Any] = {"temperature": 0.0, "max_tokens": 40, **ON}
    params["extra_headers"] = {"X-Request-Id": f"paceline({said})"}
    if stream:
        [usage] = [part.usage async for part in await ask(**params, **WITH_USAGE) if part.usage]
    else:
        usage = (await ask(**params)).usage
    if (told := usage.completion_tokens_details) is None:
        return 0, 0
    return told.accepted_prediction_tokens or 0, told.rejected_prediction_tokens or 0


@pytest.mark.parametrize("row", TAKEN)
async def test_a_parameter_of_the_openai_api_becomes_what_the_page_says(front: Front, row: str):
    await TAKEN[row](front)


@pytest.mark.parametrize("row", REFUSED)
async def test_what_the_page_says_is_refused_is_an_error_of_its_status(front: Front, row: str):
    await REFUSED[row](front)


async def test_every_row_of_the_page_is_tried():
    assert [row[0] for row in rows_under("OpenAI")] == list(TAKEN)
    assert [row[0] for row in rows_under("what")] == list(REFUSED)
    assert [row[0] for row in rows_under("sent")] == list(SENT)


async def test_a_session_is_called_as_the_id_that_the_client_was_given(front: Front):
    done = await front.chat()
    [request] = front.ears.asked
    assert request.request_id.startswith(done.id)


async def test_the_gateway_asks_for_loads_and_for_no_cache_events_that_are_not_served(front: Front):
    await until(lambda: "GetLoads" in front.ears.called)
    [load] = (await _loads(front)).loads
    assert load.num_total_reqs == 0


async def _loads(front: Front) -> Any:
    from tests.gateway.kit import gateway_stub

    async with gateway_stub(front.running.address) as stub:
        assert not (await stub.GetLoads(vllm.GetLoadsRequest(dp_rank=1))).loads
        return await stub.GetLoads(vllm.GetLoadsRequest())
