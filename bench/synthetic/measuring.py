"""The same outputs by every way to decode, taking turns.

Every trial has a scope of its own, as in `bench.runner`: its sessions get nothing of those before
them, which is checked, and leave nothing behind.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline import Client

from bench.cpu import cpu_seconds
from bench.synthetic.serving import ServedWay
from services.cluster.asking import follow
from services.cluster.figures import Measured
from services.cluster.fresh import FRESH, require_fresh

WARM_UP_TOKENS = 8
IN_TURN = 4
"""Sessions that each of several clients opens, one after another: a load that lasts."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Some outputs at the same time by one way; `cpu_s` is what its orchestrator took."""

    way: str
    repeat: int
    results: tuple[Measured, ...]
    wall_s: float
    cpu_s: float

    @property
    def tokens(self) -> int:
        """Output tokens of all."""
        return sum(result.tokens for result in self.results)

    @property
    def rounds(self) -> int:
        """Verifications of all."""
        return sum(len(result.rounds) for result in self.results)


async def measure(
    served: Sequence[ServedWay],
    tokens: int,
    repeats: int,
    concurrency: int,
    trials: list[Trial],
    report: Callable[[str], None],
) -> None:
    """Run everything, adding to `trials` as it goes: a run that is stopped keeps what it has.

    Every repeat has worlds of its own, the same for every way. Raises the client's errors, and
    NotFresh for a trial that found anything of those before it.
    """
    for one in served:
        await _generate(one, ["warm-up"], WARM_UP_TOKENS, 1)
    for repeat in range(repeats):
        first = repeat % len(served)
        for one in (*served[first:], *served[:first]):
            trial = await _trial(one, repeat, tokens, concurrency)
            trials.append(trial)
        report(f"repeat {repeat + 1}/{repeats} done")


async def _trial(served: ServedWay, repeat: int, tokens: int, concurrency: int) -> Trial:
    count = concurrency * (IN_TURN if concurrency > 1 else 1)
    prompts = [f"world {repeat}-{number}" for number in range(count)]
    spent, began = _cpu(served.pid), time.perf_counter()
    results = await _generate(served, prompts, tokens, concurrency)
    wall = time.perf_counter() - began
    # Synthetic drafters keep no phrases: K/V is all that could be found.
    require_fresh(f"{served.way.name}, repeat {repeat + 1}", results, recalled=0)
    return Trial(served.way.name, repeat, tuple(results), wall, _cpu(served.pid) - spent)


async def _generate(
    served: ServedWay, prompts: Sequence[str], tokens: int, concurrency: int
) -> list[Measured]:
    asked = {"max_tokens": tokens, "temperature": 0.0, "include_rounds": True, **FRESH}
    asked |= served.way.options
    async with Client(served.address) as client:
        await client.model_info()  # the connection stands before the clock starts
        each = [asked | {"messages": [{"role": "user", "content": text}]} for text in prompts]
        turns = [each[number::concurrency] for number in range(concurrency)]
        answered = await asyncio.gather(*(_one_by_one(client, turn) for turn in turns))
    return [result for results in answered for result in results]


async def _one_by_one(client: Client, asked: Sequence[dict[str, Any]]) -> list[Measured]:
    """A client that asks again as soon as it has an answer."""
    return [await follow(client, one, lambda _: None) for one in asked]


def _cpu(pid: int) -> float:
    """Nothing of a process that is gone: its trial has failed already."""
    return cpu_seconds(pid) or 0.0
