"""A generation that outlives this program: kill it, run it again, and it goes on.

    python resume.py "Why is the sky blue?" --state answer.json

What it needs for that is in the file: the session's id, how many tokens came, their hash, and
the text so far. The hash makes sure that it never goes on with another text.
"""

import argparse
import asyncio
import json
import os
import sys
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path

from paceline import EMPTY_HASH, Chunk, Client, GenerationStream, extend_hash


@dataclass
class Answer:
    """What has come of one generation."""

    prompt: str
    session: str = field(default_factory=lambda: uuid.uuid4().hex)
    tokens: int = 0
    prefix_hash: int = EMPTY_HASH
    text: str = ""

    def add(self, chunk: Chunk) -> None:
        """One more chunk."""
        self.tokens += len(chunk.token_ids)
        self.prefix_hash = extend_hash(self.prefix_hash, chunk.token_ids)
        self.text += chunk.text

    def save(self, file: Path) -> None:
        """In one piece, whenever this program dies."""
        scratch = file.with_suffix(".new")
        scratch.write_text(json.dumps(asdict(self)))
        os.replace(scratch, file)

    @classmethod
    def begun(cls, prompt: str, file: Path) -> "Answer":
        """What the file has, else a new one."""
        return cls(**json.loads(file.read_text())) if file.exists() else cls(prompt)


def stream(client: Client, answer: Answer, max_tokens: int) -> GenerationStream:
    """The rest of it."""
    if answer.tokens:
        had = answer.prefix_hash
        return client.resume(answer.session, offset=answer.tokens, prefix_hash=had)
    # With the same id this attaches to the session there is, if it got that far.
    return client.generate(answer.prompt, request_id=answer.session, max_tokens=max_tokens)


async def go_on(address: str, answer: Answer, file: Path, max_tokens: int) -> None:
    """Print the text, what came before included, and keep the file up to date."""
    answer.save(file)
    print(answer.text, end="", flush=True)
    async with Client(address) as client:
        async for event in stream(client, answer, max_tokens):
            if isinstance(event, Chunk):
                answer.add(event)
                answer.save(file)
                print(event.text, end="", flush=True)
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("prompt")
    parser.add_argument("--address", default="127.0.0.1:50051", help="one, or several with commas")
    parser.add_argument("--state", type=Path, default=Path("answer.json"))
    parser.add_argument("--max-tokens", type=int, default=256)
    asked = parser.parse_args()
    answer = Answer.begun(asked.prompt, asked.state)
    if answer.tokens:
        print(f"going on after {answer.tokens} tokens", file=sys.stderr)
    asyncio.run(go_on(asked.address, answer, asked.state, asked.max_tokens))
    asked.state.unlink()


if __name__ == "__main__":
    main()
