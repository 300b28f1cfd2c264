"""Runs every configuration on the same prompts, taking turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline import Client

from bench.prompts import BenchPrompt
from services.console.figures import Measured
from services.console.generate import follow, question

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to decode: which server, with which options; `cores` in words.

    `exact`: its text is promised to be that of plain decoding with the same seed.
    """

    name: str
    address: str
    cores: str
    options: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Trial:
    """A group of prompts answered at the same time by one configuration."""

    configuration: str
    repeat: int
    group: int
    prompts: tuple[BenchPrompt, ...]
    results: tuple[Measured, ...]
    wall_s: float

    @property
    def tokens(self) -> int:
        """Output tokens of the group."""
        return sum(result.tokens for result in self.results)


@dataclass(frozen=True, slots=True)
class Schedule:
    """What to run: `concurrency` prompts at a time, every group `repeats` times.

    Each repeat has a seed of its own, from `seed` on: what is drawn at random is drawn anew.
    """

    prompts: Sequence[BenchPrompt]
    repeats: int = 3
    concurrency: int = 1
    sampling: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1

    @property
    def groups(self) -> list[tuple[BenchPrompt, ...]]:
        """The prompts that are answered at the same time."""
        size = self.concurrency
        return [
            tuple(self.prompts[start : start + size]) for start in range(0, len(self.prompts), size)
        ]


async def run_schedule(
    configurations: Sequence[Configuration],
    schedule: Schedule,
    trials: list[Trial],
    report: Callable[[str], None],
) -> None:
    """Run everything, adding to `trials` as it goes: a run that is stopped keeps what it has.

    Every group is answered by all configurations in a row, each time another one
    first, so that a machine that slows down slows all of them. Raises the
    client's errors.
    """
    for configuration in configurations:
        await _warm_up(configuration)
    groups = schedule.groups
    for repeat in range(schedule.repeats):
        for number, group in enumerate(groups):
            for configuration in rotated(configurations, (repeat + number) % len(configurations)):
                trial = await _trial(configuration, schedule, repeat, number, group)
                trials.append(trial)
            report(f"repeat {repeat + 1}/{schedule.repeats}, group {number + 1}/{len(groups)} done")


def rotated(configurations: Sequence[Configuration], turn: int) -> list[Configuration]:
    """The configurations, beginning with number `turn`."""
    return [*configurations[turn:], *configurations[:turn]]


async def _warm_up(configuration: Configuration) -> None:
    async with Client(configuration.address) as client:
        asked = {"prompt": "Hello", "max_tokens": WARM_UP_TOKENS, **configuration.options}
        await follow(client, asked, lambda _: None)


async def _trial(
    configuration: Configuration,
    schedule: Schedule,
    repeat: int,
    number: int,
    group: tuple[BenchPrompt, ...],
) -> Trial:
    async with Client(configuration.address) as client:
        options = {"include_rounds": True, "seed": schedule.seed + repeat}
        options |= {**schedule.sampling, **configuration.options}
        asked = [await question(client, prompt.text) | options for prompt in group]
        began = time.perf_counter()
        results = await asyncio.gather(*(follow(client, one, lambda _: None) for one in asked))
        wall = time.perf_counter() - began
    return Trial(configuration.name, repeat, number, group, tuple(results), wall)
