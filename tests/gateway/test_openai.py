"""The real OpenAI client and the real gateway in front of `paceline up`: the published recipe."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from paceline import Client

from tests.answers import answer_schema, is_answer
from tests.gateway.openai_kit import GUIDE, Gateway, command_of, gateway, smg
from tests.models import BOS, tiny_tokenizer
from tests.processes.conftest import Up, start_up
from tests.waiting import wait_until

pytestmark = pytest.mark.processes

CONTEXT = 512
PROMPT = "the small drafter rides ahead and the large verifier checks"
CHAT: Any = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "what does the law say of the drafter?"},
]
# A random model says broken UTF-8, which everybody shows in a way of his own.
LETTERS = {"regex": r"[a-h ]{40}"}
LONG_LETTERS = {"regex": r"[a-h ]{240}"}
PLAIN: dict[str, Any] = {"temperature": 0.0, "max_tokens": 60}
LONG = {"max_tokens": 420, "temperature": 0.0, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Up]:
    """The recipe's cluster on a tiny target, with a store of its own."""
    smg()
    command, *words = command_of("paceline", target=str(models / "llama-0"), port="0")
    assert command == "up"
    own = [word for word in words if not word.startswith("--redis")]
    with pytest.MonkeyPatch.context() as environment:
        # Nobody's leaving alone would end a session.
        environment.setenv("PACELINE_DETACH_GRACE", "500")
        running = start_up(tmp_path_factory.mktemp("up"), *own)
    yield running
    running.process.terminate()
    running.process.wait(timeout=60)


@pytest.fixture(scope="module")
def front(up: Up, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway(up.address, tmp_path_factory.mktemp("smg") / "log") as made:
        yield made


@pytest.fixture
def client(front: Gateway) -> Iterator[openai.OpenAI]:
    with front.client() as made:
        yield made


def ours(up: Up, use: Callable[[Client], Any]) -> Any:
    """What our own API says."""

    async def ask() -> Any:
        async with Client(up.address) as client:
            return await use(client)

    return asyncio.run(ask())


def held(up: Up) -> tuple[int, int, int]:
    """Sessions at the orchestrator and at the workers, and what verifiers hold of K/V."""
    info = ours(up, lambda client: client.server_info())
    sessions = sum(worker.sessions for worker in info.workers)
    return info.active_sessions, sessions, sum(worker.kv_tokens_used for worker in info.workers)


def test_a_completion_is_the_text_of_our_own_api_and_its_model_is_listed(up, front, client):
    info = ours(up, lambda client: client.model_info())
    assert [model.id for model in client.models.list()] == [front.model] == [info.model]
    expected = ours(up, lambda client: client.generate(PROMPT, **PLAIN, **LETTERS))
    done = client.completions.create(model=front.model, prompt=PROMPT, **PLAIN, extra_body=LETTERS)
    assert done.choices[0].text == expected.text
    assert re.fullmatch(LETTERS["regex"], expected.text)
    assert done.choices[0].finish_reason == "stop"
    tokens = expected.usage.prompt_tokens, len(expected.token_ids)
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == tokens
    drafts = done.usage.completion_tokens_details
    assert drafts.accepted_prediction_tokens + drafts.rejected_prediction_tokens > 0


def test_a_chat_streams_the_text_of_our_own_api_piece_by_piece(up, front, client):
    plain: dict[str, Any] = {"temperature": 0.0, "max_tokens": 300}
    expected = ours(up, lambda client: client.generate(messages=CHAT, **plain, **LONG_LETTERS))
    told: Any = {"model": front.model, "messages": CHAT, "stream": True, **plain}
    told["extra_body"] = LONG_LETTERS
    chunks = list(client.chat.completions.create(**told, stream_options={"include_usage": True}))
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    said = [piece for piece in pieces if piece]
    assert "".join(said) == expected.text
    # On a busy machine a piece is several tokens: of so long a text there are more.
    assert len(said) > 3
    [usage] = [chunk.usage for chunk in chunks if chunk.usage]
    assert usage.completion_tokens == len(expected.token_ids)
    assert usage.prompt_tokens == expected.usage.prompt_tokens


def test_a_json_schema_is_kept_to(front, client):
    done = client.chat.completions.create(
        model=front.model,
        messages=CHAT,
        max_tokens=120,
        seed=1,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": answer_schema(6)},
        },
    )
    assert done.choices[0].finish_reason == "stop"
    assert is_answer(json.loads(done.choices[0].message.content), 6)


TELL: Any = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
TELL["additionalProperties"] = False
TOOLS: Any = [{"type": "function", "function": {"name": "tell", "parameters": TELL}}]


def called(client: openai.OpenAI, model: str) -> Any:
    """The message of a random model that calls: not every one of its texts ends."""
    for seed in range(20):
        done = client.chat.completions.create(
            model=model,
            messages=CHAT,
            tools=TOOLS,
            tool_choice={"type": "function", "function": {"name": "tell"}},
            seed=seed,
            max_tokens=60,
        )
        if done.choices[0].finish_reason == "tool_calls":
            return done.choices[0].message
    raise AssertionError("no text came to its end")


def test_a_tool_is_called_and_its_result_answered_as_by_our_own_api(up, front, client):
    message = called(client, front.model)
    [call] = message.tool_calls
    assert call.function.name == "tell"
    assert json.loads(call.function.arguments)["n"] in (1, 2)
    result = {"role": "tool", "tool_call_id": call.id, "content": "two"}
    # A null would be the word `none` in the prompt: smg does not leave it out.
    talk: Any = [*CHAT, message.model_dump() | {"content": ""}, result]
    done = client.chat.completions.create(
        model=front.model, messages=talk, tools=TOOLS, **PLAIN, extra_body=LETTERS
    )
    expected = ours(
        up, lambda client: client.generate(messages=talk, tools=TOOLS, **PLAIN, **LETTERS)
    )
    assert done.usage.prompt_tokens == expected.usage.prompt_tokens
    assert done.choices[0].message.content == expected.text
    assert re.fullmatch(LETTERS["regex"], expected.text)


def test_the_published_program_prints_an_answer(front):
    program, *_ = re.findall(r"```python[^\n]*\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert "http://127.0.0.1:30000/v1" in program
    done = subprocess.run(
        [sys.executable, "-c", program.replace("http://127.0.0.1:30000/v1", front.url)],
        capture_output=True,
        timeout=250,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout


def test_a_temperature_near_zero_is_greedy(front, client):
    def said(**params: Any) -> str:
        asked: Any = {"model": front.model, "prompt": PROMPT, "max_tokens": 40, **params}
        return client.completions.create(**asked, extra_body=LETTERS).choices[0].text

    assert said(temperature=1e-8) == said(temperature=1e-5) == said(temperature=0)


def test_an_answer_without_a_length_goes_on_to_the_end_of_the_context(front, client):
    done = client.completions.create(
        model=front.model, prompt=PROMPT, temperature=0, extra_body={"ignore_eos": True}
    )
    assert done.choices[0].finish_reason == "length"
    assert done.usage.total_tokens == CONTEXT


def test_a_stop_string_that_is_a_special_token_ends_the_answer_there(up, front, client):
    plain: dict[str, Any] = {"temperature": 0.0, "max_tokens": 200}
    grammar = {"ebnf": "start: /[a-h ]{5}/ <|im_start|> /[a-h ]{5}/"}
    ours_too = ours(
        up,
        lambda client: client.generate(PROMPT, grammar=grammar["ebnf"], stop=[BOS], **plain),
    )
    done = client.completions.create(
        model=front.model, prompt=PROMPT, stop=[BOS], extra_body=grammar, **plain
    )
    assert done.choices[0].finish_reason == ours_too.finish_reason == "stop"
    assert done.choices[0].text == ours_too.text
    assert re.fullmatch("[a-h ]{5}", ours_too.text)
    assert done.usage.completion_tokens == len(ours_too.token_ids)


def bad_schema(client: openai.OpenAI, model: str) -> object:
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "no"}}}
    return client.chat.completions.create(model=model, messages=CHAT, response_format=form)


Ask = Callable[[openai.OpenAI, str], object]
ERRORS: dict[str, tuple[Ask, int, str]] = {
    "bad schema": (bad_schema, 400, "sampling_params.json_schema: 'Invalid type: no'"),
    "too long": (
        lambda client, model: client.completions.create(
            model=model, prompt=PROMPT, max_tokens=9999
        ),
        400,
        "sampling_params.max_tokens: 9999 is not allowed; allowed is 1 to",
    ),
    "an embedding": (
        lambda client, model: client.embeddings.create(model=model, input=PROMPT),
        501,
        "makes no embeddings",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be_served_is_an_error_of_its_kind_with_the_reason(front, client, name):
    ask, status, reason = ERRORS[name]
    with pytest.raises(openai.APIStatusError) as caught:
        ask(client, front.model)
    assert caught.value.status_code == status
    assert reason in str(caught.value)


def test_a_session_that_the_header_names_is_computed_once(up, front, client):
    def asked(seed: int) -> str:
        done = client.completions.create(
            model=front.model,
            prompt=PROMPT,
            max_tokens=30,
            seed=seed,
            extra_body=LETTERS,
            extra_headers={"X-Request-Id": "paceline(session=sky-1)"},
        )
        return done.choices[0].text

    assert asked(3) == asked(3)
    stored = ours(up, lambda client: client.resume("sky-1"))
    assert stored.text == asked(3)
    with pytest.raises(openai.ConflictError, match="sky-1"):
        asked(4)


def test_what_smg_drops_can_be_said_in_the_header(front, client):
    def said(name: str) -> str:
        done = client.completions.create(
            model=front.model,
            prompt=PROMPT,
            max_tokens=3,
            temperature=0,
            extra_body={"regex": "[ab]{3}"},
            extra_headers={"X-Request-Id": f"paceline(logit_bias={name})"},
        )
        return done.choices[0].text

    letters = [tiny_tokenizer().convert_tokens_to_ids(letter) for letter in "ab"]
    assert [said(f"{letter}:100") for letter in letters] == ["aaa", "bbb"]
    with pytest.raises(openai.BadRequestError, match=r"sampling_params\.logit_bias"):
        said("1:1000")


def test_a_stream_that_is_closed_early_frees_what_it_held(up, front, client):
    with client.completions.create(model=front.model, prompt=PROMPT, stream=True, **LONG) as stream:
        next(stream)
        wait_until(lambda: held(up)[0])
    wait_until(lambda: held(up) == (0, 0, 0))
