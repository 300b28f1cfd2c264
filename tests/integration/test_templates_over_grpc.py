"""What a model's chat templates are reaches clients, through verifier and orchestrator."""

import copy

import pytest
from paceline import InvalidArgument

from services.engine.native import NativeEngine
from services.engine.spec import ModelSpec
from services.verifier.options import VerifierOptions
from tests.integration.cluster import PROMPT, Worker, cluster, start_core, target, verifier_core
from tests.models import tiny_tokenizer

TOOL = {"type": "function", "function": {"name": "tell", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "tell", "arguments": '{"n": "one"}'}}
ASKED = {"role": "user", "content": "tell"}
ONE = {"max_tokens": 1, "temperature": 0.0}

PLAIN = "{% for message in messages %}{{ message.role }} {{ message.content }}{% endfor %}"
WITH_TOOLS = (
    "{{ pad_token }}{{ tools | length }}{% for message in messages %}"
    "{% if message.content is none %}{% for call in message.tool_calls %}"
    "{{ call.function.name + call.function.arguments }}{% endfor %}{% else %}"
    "{{ message.content }}{% endif %}{% endfor %}"
)


async def start_with(templates: str | dict[str, str]) -> Worker:
    tokenizer = copy.deepcopy(tiny_tokenizer())
    tokenizer.chat_template = templates
    loaded = NativeEngine.from_model(target(), tokenizer, ModelSpec("llama"))
    return await start_core(verifier_core, loaded, "v1", loaded.bundle, options=VerifierOptions())


async def test_tools_nulls_roles_and_special_tokens_reach_the_template_that_is_theirs():
    def length(text: str) -> int:
        return len(tiny_tokenizer().encode(text, add_special_tokens=False))

    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    talk = {"messages": [ASKED, called], "tools": [TOOL]}
    pad = tiny_tokenizer().pad_token
    templates = {"default": PLAIN, "tool_use": WITH_TOOLS}
    async with cluster([await start_with(templates)], []) as running:
        client = running.client
        assert (await client.model_info()).chat_template_takes_tools
        with_tools = await client.generate(**talk, **ONE)
        assert with_tools.usage.prompt_tokens == length(pad + '1telltell{"n": "one"}')
        said = {"role": "observation", "content": "cold"}
        plain = await client.generate(messages=[said], **ONE)
        assert plain.usage.prompt_tokens == length("observation cold")
        with pytest.raises(InvalidArgument, match="leaves out words") as caught:
            await client.generate(messages=[ASKED, called], **ONE)
        assert caught.value.violations[0].field == "conversation.messages[1].tool_calls"


async def test_a_broken_template_is_told_of_once_and_prompts_are_answered(caplog):
    async with cluster([await start_with("{{ messages | shout }}")], []) as running:
        said = "the chat template default is broken: No filter named 'shout'."
        assert caplog.text.count(said) == 1
        assert (await running.client.generate(PROMPT, **ONE)).token_ids
        with pytest.raises(InvalidArgument, match="it is broken"):
            await running.client.generate(messages=[ASKED], **ONE)
        assert caplog.text.count(said) == 1
