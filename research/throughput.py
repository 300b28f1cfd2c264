"""Many sessions, chats that go on, and long prompts beside others, each against the same alone.

    python -m research.throughput --model smollm2-135m-instruct

On a cluster of real processes: an orchestrator, a store and a verifier on `--threads`
cores, plain decoding. Everything that is compared takes turns in one run:

    crowd    tokens/s of --sessions at once / of one
    turn     time to the first token of a chat's second turn / of the same text with nothing kept
    prompts  p95 time per token of sessions that decode while prompts of --long tokens arrive /
             while none does

Sessions of `crowd` and `prompts` are ephemeral, so that they share no K/V.
"""

import argparse
import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from statistics import median
from typing import Any

from paceline import Chunk, Client, Event

from bench.figures import Percentiles
from bench.prompts import SPEC_BENCH, load_prompts
from research.command import measuring_parser, ratios, run, say, table
from services.cluster.asking import follow
from services.cluster.figures import Measured
from services.cluster.local import local_cluster
from services.cluster.specs import ClusterOptions

PLAIN: dict[str, Any] = {
    "temperature": 0.0,
    "ignore_eos": True,
    "disable_speculative_decoding": True,
}
ALONE: dict[str, Any] = {**PLAIN, "ephemeral": True}
CHAT_WORDS = 300
FOLLOW_UP = "Thank you. Now say the same in one sentence, for a child."

OnEvent = Callable[[Event], None]


def _ignore(_: Event) -> None:
    """What comes is only measured."""


class Bench:
    """What all measurements share. Tokens and seconds."""

    def __init__(self, client: Client, asked: argparse.Namespace) -> None:
        self._client, self._asked = client, asked
        self._prompts = [prompt.text for prompt in load_prompts(SPEC_BENCH, 80)]

    async def crowd(self, sessions: int) -> float:
        """Tokens per second of so many sessions at once."""
        prompts = self._prompts[:sessions]
        began = time.perf_counter()
        runs = await asyncio.gather(*(self._say(text, self._asked.tokens) for text in prompts))
        return sum(run.tokens for run in runs) / (time.perf_counter() - began)

    async def turn(self, number: int) -> tuple[float, float, int]:
        """Time to the first token of a second turn: kept, not kept; and the tokens found."""
        words = " ".join(self._prompts).split()
        start = number * CHAT_WORDS % (len(words) - CHAT_WORDS)
        chat = [{"role": "user", "content": " ".join(words[start : start + CHAT_WORDS])}]
        first = await self._client.generate(messages=chat, max_tokens=48, **PLAIN)
        chat += [
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": FOLLOW_UP},
        ]
        asked = {"messages": chat, "max_tokens": 4}
        again = await follow(self._client, {**asked, **ALONE}, _ignore)
        kept = await follow(self._client, {**asked, **PLAIN}, _ignore)
        return kept.first_token_s, again.first_token_s, kept.complete.usage.cached_tokens

    async def gaps(self, sessions: int, *, prompts: bool) -> list[float]:
        """Times per token of sessions that decode, with or without long prompts coming."""
        texts = self._prompts[:sessions]
        tokens = self._asked.tokens
        silent, all_decode = set(range(sessions)), asyncio.Event()

        def see(session: int, event: Event) -> None:
            if isinstance(event, Chunk):
                silent.discard(session)
                if not silent:
                    all_decode.set()

        decoding = asyncio.gather(
            *(self._say(text, tokens, partial(see, place)) for place, text in enumerate(texts))
        )
        coming = asyncio.create_task(self._long_prompts(all_decode)) if prompts else None
        runs = await decoding
        if coming is not None:
            coming.cancel()
            await asyncio.wait([coming])
        return [gap for run in runs for gap in run.latencies_s]

    async def _long_prompts(self, decoding: asyncio.Event) -> None:
        """One long prompt after the other, once those beside them decode."""
        await decoding.wait()
        drawn = random.Random(5)
        while True:
            ids = [drawn.randrange(1000, 40_000) for _ in range(self._asked.long)]
            await self._client.generate(tokens=ids, max_tokens=1, **ALONE)

    async def _say(self, prompt: str, tokens: int, on_event: OnEvent = _ignore) -> Measured:
        return await follow(
            self._client, {"prompt": prompt, "max_tokens": tokens, **ALONE}, on_event
        )


@asynccontextmanager
async def _bench(asked: argparse.Namespace) -> AsyncIterator[Bench]:
    options = ClusterOptions(
        asked.model,
        drafters=0,
        dtype=asked.dtype,
        verifier_threads=asked.threads,
    )
    async with local_cluster(options, say) as cluster, Client(cluster.address) as client:
        yield Bench(client, asked)


async def _measured(asked: argparse.Namespace) -> dict[str, Any]:
    sessions, repeats = asked.sessions, asked.repeats
    figures: dict[str, list[Any]] = {}

    def keep(name: str, figure: object) -> None:
        figures.setdefault(name, []).append(figure)

    async with _bench(asked) as bench:
        await bench.crowd(2)  # not measured: what is made at the first step
        for repeat in range(repeats):
            say(f"repeat {repeat + 1}/{repeats}")
            for many in (1, sessions):
                keep(f"crowd {many}", await bench.crowd(many))
            kept, again, found = await bench.turn(repeat)
            keep("turn kept", kept)
            keep("turn alone", again)
            keep("turn found", found)
            for prompts in (False, True):
                times = Percentiles.of(await bench.gaps(asked.beside, prompts=prompts))
                assert times is not None
                keep("gaps beside prompts" if prompts else "gaps", times.p95 / 1e3)
    over = {
        f"crowd: {sessions} sessions / one, tokens/s": (f"crowd {sessions}", "crowd 1"),
        "turn: K/V kept / nothing kept, first token": ("turn kept", "turn alone"),
        f"prompts of {asked.long}: p95 time per token beside / without": (
            "gaps beside prompts",
            "gaps",
        ),
    }
    return {
        "figures": figures,
        "ratios": {name: ratios(figures[one], figures[two]) for name, (one, two) in over.items()},
    }


def _show(report: dict[str, Any]) -> str:
    figures = [{"figure": one, "median": median(own)} for one, own in report["figures"].items()]
    rows = [{"ratio": name} | ratio for name, ratio in report["ratios"].items()]
    columns = {"ratio": "", "median": ".2f", "min": ".2f", "max": ".2f"}
    return f"{table({'figure': '', 'median': '.3f'}, figures)}\n\n{table(columns, rows)}"


def _parser() -> argparse.ArgumentParser:
    made = measuring_parser(__doc__, dtype="bfloat16", tokens=128, repeats=3)
    made.add_argument("--sessions", type=int, default=16, help="of the crowd")
    made.add_argument("--beside", type=int, default=8, help="sessions beside long prompts")
    made.add_argument("--long", type=int, default=2000, help="tokens of a long prompt")
    return made


if __name__ == "__main__":
    run(_parser(), lambda asked: asyncio.run(_measured(asked)), _show)
