"""Runs every configuration on the same prompts, taking turns.

Every trial has a scope of its own: its sessions use nothing of earlier texts and leave nothing
behind (`services.cluster.fresh`). Each trial is checked, and the first one that used anything ends
the run. Text seen before is another scenario, `Schedule.seen_before`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from paceline import Client

from bench.cpu import cpu_seconds
from bench.prompts import BenchPrompt
from services.cluster.asking import follow, question
from services.cluster.figures import Measured
from services.cluster.fresh import FRESH, require_fresh

WARM_UP_TOKENS = 8
WARM_UP = BenchPrompt(0, "warm-up", "Hello")
WAVES = 4
"""Prompts of a group for each concurrent session."""
WATCHED = 16
"""Of so many prompts of a group one is asked for its rounds: telling them costs everybody CPU."""
ORCHESTRATOR, CLIENT = "orchestrator", "client"
"""Roles of processes whose CPU time is told; the client is the bench itself."""

Answer = Callable[[BenchPrompt, Mapping[str, Any]], Awaitable[Measured]]


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to decode, with its options; `cores` in words.

    Our client asks one with an address; `answer` asks a peer. `exact`: its text is that of
    plain decoding with the same seed. `pids`: its processes, by role. `baseline`: the others
    are compared with it. `dtype`: its number format. `recalled`: how many tokens its drafters
    have taken so far from other sessions' texts.
    """

    name: str
    address: str = ""
    cores: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = True
    answer: Answer | None = None
    pids: Mapping[str, int] = field(default_factory=dict)
    baseline: bool = False
    dtype: str = ""
    recalled: Callable[[], Awaitable[int]] | None = None


TrialKey = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class Trial:
    """A group of prompts answered by one configuration, `level` at a time.

    `cpu_s`: CPU time meanwhile of each process that is known, by role.
    `recalled`: tokens that drafters took from other sessions' texts; None if not counted.
    `dtype`: the configuration's number format.
    """

    configuration: str
    repeat: int
    group: int
    prompts: tuple[BenchPrompt, ...]
    results: tuple[Measured, ...]
    wall_s: float
    level: int = 1
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    recalled: int | None = None
    dtype: str = ""

    @property
    def tokens(self) -> int:
        """Output tokens of the group."""
        return sum(result.tokens for result in self.results)

    @property
    def key(self) -> TrialKey:
        """Its identity among the trials of a run."""
        return self.configuration, self.level, self.repeat, self.group

    def __str__(self) -> str:
        asked = ", ".join(f"{one.question_id} ({one.category})" for one in self.prompts[:3])
        asked += ", …" if len(self.prompts) > 3 else ""
        return (
            f"{self.configuration}, prompt {asked}, {self.level} at a time, "
            f"repeat {self.repeat + 1}"
        )


@dataclass(frozen=True, slots=True)
class Schedule:
    """What to run: every group `repeats` times at each of `levels`, so many prompts at a time.

    Each repeat has a seed of its own, from `seed` on: what is drawn at random is drawn anew.
    `seen_before`: all sessions share one scope, and each configuration has answered every prompt
    once, with another seed, before anything is measured.
    """

    prompts: Sequence[BenchPrompt]
    repeats: int = 3
    levels: Sequence[int] = (1,)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1
    warm_up: BenchPrompt = WARM_UP
    seen_before: bool = False

    def groups(self, level: int, repeat: int = 0) -> list[tuple[BenchPrompt, ...]]:  # noqa: ARG002
        """What one trial answers: a single prompt, or some waves of as many as the level asks.

        Groups differ by one prompt at most, and none is smaller than the level if there
        are as many prompts.
        """
        size = level * WAVES if level > 1 else 1
        count = max(1, len(self.prompts) // size)
        bounds = [number * len(self.prompts) // count for number in range(count + 1)]
        return [tuple(self.prompts[start:end]) for start, end in pairwise(bounds)]


async def run_schedule(
    configurations: Sequence[Configuration],
    schedule: Schedule,
    keep: Callable[[Trial], None],
    report: Callable[[str], None],
    done: Collection[TrialKey] = (),
) -> None:
    """Run everything that is not `done`; `keep` gets each trial as it ends.

    Every group is answered by all configurations in a row, each time another one
    first, so that a machine that slows down slows all of them. Raises the
    client's errors, and NotFresh, naming the trial, for one that found anything of the texts
    before it.
    """
    for configuration in configurations:
        await warm_up(configuration, schedule)
    if schedule.seen_before:
        await _see(configurations, schedule, report)
    for level in schedule.levels:
        for repeat in range(schedule.repeats):
            groups = schedule.groups(level, repeat)
            for number, group in enumerate(groups):
                turn = (repeat + number) % len(configurations)
                for one in rotated(configurations, turn):
                    if (one.name, level, repeat, number) not in done:
                        keep(await trial_of(one, schedule, level, repeat, number, group))
                report(
                    f"{level} at a time, repeat {repeat + 1}/{schedule.repeats}, "
                    f"group {number + 1}/{len(groups)} done"
                )


def rotated(configurations: Sequence[Configuration], turn: int) -> list[Configuration]:
    """The configurations, beginning with number `turn`."""
    return [*configurations[turn:], *configurations[:turn]]


async def warm_up(configuration: Configuration, schedule: Schedule) -> None:
    """Answer once, so that everything made lazily exists."""
    options = {**schedule.sampling, **configuration.options, "max_tokens": WARM_UP_TOKENS}
    await answers_of(configuration, [schedule.warm_up], {**options, **FRESH}, level=1)


async def _see(
    configurations: Sequence[Configuration], schedule: Schedule, report: Callable[[str], None]
) -> None:
    """Every prompt answered once by each, unmeasured, with a seed that no repeat has."""
    drawn = {"seed": schedule.seed + schedule.repeats, **schedule.sampling}
    for one in configurations:
        await answers_of(
            one, schedule.prompts, {**drawn, **one.options}, level=max(schedule.levels)
        )
        report(f"{one.name} has answered every prompt once")


async def trial_of(
    configuration: Configuration,
    schedule: Schedule,
    level: int,
    repeat: int,
    number: int,
    group: tuple[BenchPrompt, ...],
) -> Trial:
    """A group answered. Raises the client's errors, and NotFresh."""
    options = {"seed": schedule.seed + repeat, **schedule.sampling, **configuration.options}
    options |= {} if schedule.seen_before else FRESH
    known, busy = await _recalled(configuration), _busy(configuration)
    began = time.perf_counter()
    results = await answers_of(configuration, group, options, level)
    wall = time.perf_counter() - began
    now = _busy(configuration)
    used = {role: now[role] - seconds for role, seconds in busy.items() if role in now}
    recalled = _since(known, await _recalled(configuration))
    trial = Trial(
        configuration.name,
        repeat,
        number,
        group,
        results,
        wall,
        level,
        used,
        None if recalled is None else round(recalled),
        configuration.dtype,
    )
    if not schedule.seen_before:
        require_fresh(str(trial), results, trial.recalled or 0)
    return trial


def _since(before: float | None, now: float | None) -> float | None:
    """How much a counter grew; None where it is not known."""
    return None if before is None or now is None else max(0.0, now - before)


async def _recalled(configuration: Configuration) -> int | None:
    return None if configuration.recalled is None else await configuration.recalled()


def _busy(configuration: Configuration) -> dict[str, float]:
    """CPU seconds so far of its processes that are there, and of this one, which asks it."""
    known = {role: cpu_seconds(pid) for role, pid in configuration.pids.items()}
    spent = {role: seconds for role, seconds in known.items() if seconds is not None}
    return {**spent, CLIENT: time.process_time()} if spent else {}


async def answers_of(
    configuration: Configuration,
    prompts: Sequence[BenchPrompt],
    options: Mapping[str, Any],
    level: int,
) -> tuple[Measured, ...]:
    """Answer prompts in a closed loop: `level` at a time, the next as soon as one ends."""
    if configuration.answer is not None:
        return await closed_loop(prompts, level, options, configuration.answer)
    watched = frozenset(prompts[::WATCHED])
    async with Client(configuration.address) as client:

        async def answer(prompt: BenchPrompt, options: Mapping[str, Any]) -> Measured:
            asked = {**await _asked(client, prompt), "include_rounds": prompt in watched}
            return await follow(client, {**asked, **options}, lambda _: None)

        return await closed_loop(prompts, level, options, answer)


async def closed_loop(
    prompts: Sequence[BenchPrompt], level: int, options: Mapping[str, Any], answer: Answer
) -> tuple[Measured, ...]:
    """The answers in the prompts' order. Raises the first error bare."""
    results: dict[int, Measured] = {}
    waiting = iter(enumerate(prompts))

    async def client() -> None:
        for place, prompt in waiting:
            results[place] = await answer(prompt, options)

    try:
        async with asyncio.TaskGroup() as clients:
            for _ in range(min(level, len(prompts))):
                clients.create_task(client())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return tuple(results[place] for place in range(len(prompts)))


async def _asked(client: Client, prompt: BenchPrompt) -> dict[str, Any]:
    """The prompt by its token ids where it has them, so that all are asked alike."""
    if prompt.token_ids:
        return {"tokens": prompt.token_ids}
    return await question(client, prompt.text)
