"""A prompt's answer as it comes, and what speculation did for it.

python stream.py "Why is the sky blue?" --max-tokens 64 --temperature 0.8
"""

import argparse
import asyncio
import sys

from paceline import Chunk, Client, Complete, PacelineError


async def stream(client: Client, prompt: str, **options: object) -> None:
    """Text goes to stdout, everything else to stderr."""
    async for event in client.generate(prompt, **options):
        match event:
            case Chunk(text=text):
                print(text, end="", flush=True)
            case Complete(finish_reason=reason, usage=usage, speculation=speculation):
                print()
                print(
                    f"{usage.completion_tokens} tokens, then {reason}; "
                    f"{speculation.block_efficiency:.2f} tokens a forward of the target",
                    file=sys.stderr,
                )


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("prompt")
    parser.add_argument("--address", default="127.0.0.1:50051", help="one, or several with commas")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int)
    asked = vars(parser.parse_args())
    prompt = asked.pop("prompt")
    async with Client(asked.pop("address")) as client:
        try:
            await stream(client, prompt, **{k: v for k, v in asked.items() if v is not None})
        except PacelineError as error:
            print(f"{error.code}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
