"""Facts out of a text, as records: every answer is JSON of a schema.

python json_schema.py "Oslo has 717710 inhabitants and is the capital of Norway."
"""

import argparse
import asyncio
import json
import sys
from dataclasses import dataclass

from paceline import Client, FinishReason, InvalidArgument, ResourceExhausted

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "people": {"type": "integer", "minimum": 0, "maximum": 100_000_000},
        "capital": {"type": "boolean"},
    },
    "required": ["name", "people", "capital"],
    "additionalProperties": False,
    # No blanks between the parts: fewer tokens.
    "x-guidance": {"whitespace_pattern": ""},
}
"""All that can grow is bounded, so that an answer ends by itself."""


@dataclass(frozen=True)
class City:
    """What the schema asks for."""

    name: str
    people: int
    capital: bool


async def extract(client: Client, text: str) -> City | None:
    """None: the answer was cut off at `max_tokens`, and may be no JSON."""
    question = f"{text}\nThe city as JSON:\n"
    schema = json.dumps(SCHEMA)
    while True:
        try:
            done = await client.generate(
                question, json_schema=schema, max_tokens=200, temperature=0.0
            )
        except ResourceExhausted as full:
            if full.retry_after is None:
                raise
            await asyncio.sleep(full.retry_after)
            continue
        return City(**json.loads(done.text)) if done.finish_reason == FinishReason.STOP else None


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--address", default="127.0.0.1:50051", help="one, or several with commas")
    asked = parser.parse_args()
    async with Client(asked.address) as client:
        try:
            # All at once: the verifier answers them in common steps.
            cities = await asyncio.gather(*(extract(client, text) for text in asked.texts))
        except InvalidArgument as error:
            for violation in error.violations:
                print(f"{violation.field}: {violation.description}", file=sys.stderr)
            return 1
    for city in cities:
        print(city or "cut off")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
