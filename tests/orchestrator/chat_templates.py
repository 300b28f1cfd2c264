"""Chat templates of our own, each with what the templates of one family of models are made of.

Conversations and tools to render them with are here, too.
"""

from __future__ import annotations

from typing import Any

CHATML = """\
{%- for message in messages -%}
{%- if loop.first and messages[0]['role'] != 'system' -%}
{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
{%- endif -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""

# Qwen 2.5, Hermes: a system message with the tools line by line, results joined into one turn.
CALLS_IN_TAGS = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- endif %}
    {{- "\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n{\\"name\\": <name>}<|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first)
        or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' ~ message.content ~ '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# Qwen 3: thoughts of past turns are left out, those of this turn stay; enable_thinking.
THINKS = """\
{%- set ns = namespace(found=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.found and message.role == "user" and message.content is string %}
        {%- set ns.found = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

# Llama 3.1: custom_tools, the date, tools in the first turn of the user, one call at a time.
DATED = """\
{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%Y") %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start|>system\\nDate: " + date_string + "\\n\\n" + system_message + "<|eot|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("no first user message to put the tools in") }}
    {%- endif %}
    {{- '<|start|>user\\n\\n' }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first + "<|eot|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start|>' + message['role'] + '\\n\\n'+ message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("only one call at a time") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot|>" }}
    {%- else %}
        {{- "<|start|>ipython\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant\\n\\n' }}{%- endif %}
"""

# Mistral: turns must alternate, ids have nine characters, tools stand before the last user.
BRACKETS = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate user/assistant") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("ids of calls are nine characters long") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("only user, assistant and tool") }}
    {%- endif %}
{%- endfor %}
"""

# Hermes 2 Pro, gpt-oss: macros that call themselves; thoughts are called `thinking`.
MACROS = """\
{%- macro kind(spec) %}
{%- set basic = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"} %}
{%- if spec.type is defined and basic[spec.type] is defined %}{{ basic[spec.type] }}
{%- elif spec.type == "array" %}{{ "list[" + kind(spec["items"]) + "]" }}
{%- elif spec.type is iterable and spec.type is not string %}
{{- "Union[" }}{%- for t in spec.type %}{{ kind({"type": t}) }}{{ "," if not loop.last }}
{%- endfor %}{{- "]" }}
{%- else %}{{ "Any" }}{%- endif %}
{%- endmacro %}
{%- for tool in tools or [] %}
{%- set one = tool.function or tool %}
{{- one.name ~ "(" }}
{%- for name, spec in (one.parameters.properties or {}) | dictsort %}
{{- name + ": " + kind(spec) + (", " if not loop.last else "") }}
{%- endfor %}
{{- ") -- " ~ one.description | default("?") }}
{% endfor %}
{%- for message in messages %}
{%- if message.thinking %}{{ "<think>" ~ message.thinking ~ "</think>" }}{% endif %}
{{- message.role ~ (":" ~ message.name if message.name is defined else "") }}
{%- generation %}{{ message.content | trim | replace("\\n", " ") }}{% endgeneration %}
{%- for call in message.tool_calls or [] %}
{%- if loop.index > 3 %}{% break %}{% endif %}
{{- " -> %s(%s)" | format(call.function.name, call.function.arguments.items() | map("join", "=")
    | join(", ")) }}
{%- endfor %}
{{- eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "assistant:" }}{% endif %}
"""

# Phi 4 mini, Granite: the whole list of tools in one line; documents.
IN_ONE_LINE = """\
{%- set loop_messages = messages -%}
{%- if tools and messages[0].role == 'system' -%}
{{- '<|system|>' + messages[0].content + '<|tool|>' + tools | tojson + '<|/tool|><|end|>' -}}
{%- set loop_messages = messages[1:] -%}
{%- elif tools -%}
{{- '<|tool|>' + (tools | map(attribute='function') | list | tojson(separators=(',', ':'))) -}}
{%- endif -%}
{%- if documents -%}
{%- for document in documents -%}{{ loop.index ~ '. ' ~ document.title | title }}{%- endfor -%}
{%- endif -%}
{%- for message in loop_messages -%}
{{- '<|' ~ message.role ~ '|>' ~ message.content ~ '<|end|>' -}}
{%- if message.tool_calls -%}{{ message.tool_calls | tojson(sort_keys=true) }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- else -%}{{ eos_token }}{%- endif -%}
"""

TAKE_TOOLS = {
    "calls in tags": CALLS_IN_TAGS,
    "dated": DATED,
    "brackets": BRACKETS,
    "macros": MACROS,
    "in one line": IN_ONE_LINE,
}
ALL = {"chatml": CHATML, "thinks": THINKS, **TAKE_TOOLS}

Turns = list[dict[str, Any]]

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather <now> & later, in °C",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Like \"Ōsaka\" or 'Oslo'"},
                "days": {"type": ["integer", "null"], "minimum": 1},
                "parts": {"type": "array", "items": {"type": "string", "enum": ["a\n", "b"]}},
            },
            "required": ["city"],
        },
    },
}
CLOCK: dict[str, Any] = {
    "type": "function",
    "function": {"name": "clock", "description": "", "parameters": {"type": "object"}},
}
CALL: dict[str, Any] = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Ōsaka", "days": 2, "x": 1.5e30}},
}
SECOND: dict[str, Any] = {
    "id": "ABCDEFGH9",
    "type": "function",
    "function": {"name": "clock", "arguments": {}},
}
RESULT = {"role": "tool", "content": '{"t": 5}', "tool_call_id": "abcdefghi", "name": "weather"}
ASKED = {"role": "user", "content": " Weather? 🙂\n<&> "}


def calling(*calls: dict[str, Any], **more: str) -> dict[str, Any]:
    """A turn of an assistant who calls."""
    return {"role": "assistant", "content": "", **more, "tool_calls": list(calls)}


TALKS: dict[str, Turns] = {
    "a question": [ASKED],
    "turns": [
        {"role": "system", "content": "Be brief. "},
        ASKED,
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes?"},
        {"role": "user", "content": "Go", "name": "Ann"},
    ],
    "a call": [ASKED, calling(CALL), RESULT],
    "calls": [
        {"role": "system", "content": "Be brief."},
        ASKED,
        calling(CALL, SECOND, content="Let me see."),
        RESULT,
        {"role": "tool", "content": "12:00", "tool_call_id": "ABCDEFGH9"},
        {"role": "assistant", "content": "Noon, 5 °C."},
    ],
    "thoughts": [ASKED, calling(CALL, reasoning_content="the city\nfirst"), RESULT],
}
