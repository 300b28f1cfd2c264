"""Which cores the forward uses, and in how many threads.

A second thread halves the time of a prompt, but not always that of a step of one row: some hundred
times a step all threads wait for each other, and on some machines, virtual ones above all, that
takes longer than the other half of the products. So it is measured.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection

import torch

from services.runtime.affinity import available_cores, keep_to

TURNS = 12
MOST_S = 2.0
"""Seconds after which no turn begins but the first."""
NEAR = 1.1
"""A step may take so many times the least, as prompts gain from each thread."""

_log = logging.getLogger(__name__)


def pin(threads: int | None = None, cpus: Collection[int] | None = None) -> None:
    """Run torch with `threads` threads, and this process on `cpus` only; None leaves as is.

    Raises StartError for cpus that this machine does not have.
    """
    keep_to(cpus or ())
    if threads is not None:
        torch.set_num_threads(threads)


def available() -> int:
    """The threads that torch has, as far as there is a core for each."""
    return min(torch.get_num_threads(), len(available_cores()))


def choose(step: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> int:
    """Run torch with as many of its threads as `step` is fast with; returns how many.

    All of them, half of them and so on down to one are tried in turn, and the least time of each
    counts. `clock`: seconds.
    """
    most = torch.get_num_threads()
    least = {most >> halved: math.inf for halved in range(most.bit_length())}
    until = clock() + MOST_S
    for turn in range(TURNS if most > 1 else 0):
        if turn and clock() > until:
            break
        for count in least:
            least[count] = min(least[count], _timed(step, count, clock))
    allowed = NEAR * min(least.values())
    chosen = next(count for count, took in least.items() if took <= allowed)
    torch.set_num_threads(chosen)
    if most > 1:
        times = ", ".join(f"{took * 1e3:.1f} ms with {count}" for count, took in least.items())
        _log.info("%d of %d threads: a step of one row takes %s", chosen, most, times)
    return chosen


def _timed(step: Callable[[], object], threads: int, clock: Callable[[], float]) -> float:
    torch.set_num_threads(threads)
    step()  # Wakes these threads.
    start = clock()
    step()
    return clock() - start
