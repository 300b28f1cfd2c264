"""A model that calls functions, and answers when it knows.

python tools.py "How warm is it in Oslo?"

What it says is JSON of one schema, so that it can be read whatever the model is: a call of a
function with its arguments, or an answer.
"""

import argparse
import asyncio
import json
import sys
from typing import Any

from paceline import Client, FinishReason, PacelineError

DEGREES = {"Oslo": 4, "Turku": 3, "Lima": 21}
FUNCTIONS = {"temperature": lambda city: DEGREES[city]}
Turn = dict[str, Any]


def record(**properties: object) -> Turn:
    """A JSON schema: all of these, and nothing else."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "temperature",
            "description": "How warm it is in a city, in °C.",
            "parameters": record(city={"enum": [*DEGREES]}),
        },
    }
]
ANSWER = record(answer={"type": "string", "maxLength": 60})
CALLS = [
    record(name={"const": tool["function"]["name"]}, arguments=tool["function"]["parameters"])
    for tool in TOOLS
]


async def say(
    client: Client, messages: list[Turn], tools: list[Turn], *any_of: Turn
) -> Turn | None:
    """What the model says next; None: it was cut off at `max_tokens`."""
    # No blanks between the parts: fewer tokens.
    schema = {"anyOf": any_of, "x-guidance": {"whitespace_pattern": ""}}
    done = await client.generate(
        messages=messages,
        tools=tools,
        json_schema=json.dumps(schema),
        max_tokens=160,
        temperature=0.0,
    )
    return json.loads(done.text) if done.finish_reason == FinishReason.STOP else None


def carry_out(call: Turn, number: int) -> list[Turn]:
    """The two messages that a call becomes: what was called, and what came of it."""
    called = {"id": f"call{number:05}", "type": "function", "function": call}
    result = FUNCTIONS[call["name"]](**call["arguments"])
    print(f"{call['name']}({call['arguments']}) = {result}", file=sys.stderr)
    return [
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": called["id"], "content": json.dumps([call, result])},
    ]


async def ask(client: Client, question: str, most_calls: int) -> str:
    """Calls first, as many as it likes up to `most_calls`, then the answer."""
    messages: list[Turn] = [{"role": "user", "content": question}]
    tools = TOOLS if (await client.model_info()).chat_template_takes_tools else []
    if not tools:
        messages.insert(0, {"role": "system", "content": f"You can call: {json.dumps(TOOLS)}"})
    for number in range(most_calls):
        # The first turn is a call; a small model would answer without one.
        said = await say(client, messages, tools, *CALLS, *([ANSWER] if number else []))
        if said is None or "answer" in said:
            break
        messages += carry_out(said, number)
    else:
        said = await say(client, messages, tools, ANSWER)
    return "cut off" if said is None else str(said["answer"])


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("question")
    parser.add_argument("--address", default="127.0.0.1:50051", help="one, or several with commas")
    parser.add_argument("--most-calls", type=int, default=2)
    asked = parser.parse_args()
    async with Client(asked.address) as client:
        try:
            print(await ask(client, asked.question, asked.most_calls))
        except PacelineError as error:
            print(f"{error.code}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
