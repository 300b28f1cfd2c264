"""The same outputs by every way to decode, taking turns, in trials as those of `bench.runner`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.prompts import BenchPrompt
from bench.runner import WAVES, Configuration, Schedule, Trial, rotated, trial_of, warm_up


async def measure(
    served: Sequence[Configuration],
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
    schedule = Schedule((), sampling={"max_tokens": tokens, "temperature": 0.0})
    for one in served:
        await warm_up(one, schedule)
    for repeat in range(repeats):
        worlds = _worlds(repeat, concurrency * (WAVES if concurrency > 1 else 1))
        for one in rotated(served, repeat % len(served)):
            trial = await trial_of(one, schedule, concurrency, repeat, 0, worlds)
            trials.append(trial)
        report(f"repeat {repeat + 1}/{repeats} done")


def _worlds(repeat: int, count: int) -> tuple[BenchPrompt, ...]:
    return tuple(BenchPrompt(n, "world", f"world {repeat}-{n}") for n in range(count))
