"""Which cores each process of a local cluster gets.

Processes that run a model are kept apart, because two thread pools on one core
take turns at every barrier. The others (orchestrator, store, n-gram drafters) need
little and run where the system puts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class CorePlan:
    """The cores of each verifier and of each drafter that runs a model.

    A process runs as many threads as it has cores.
    """

    verifiers: tuple[tuple[int, ...], ...]
    drafters: tuple[tuple[int, ...], ...]


def plan_cores(cores: Sequence[int], verifiers: int, model_drafters: int) -> CorePlan:
    """Divide `cores`: one for each model drafter, the rest evenly among the verifiers.

    A draft model is small and gains little from a second thread. With fewer cores
    than processes they share, one thread each.
    """
    spare = len(cores) - model_drafters
    if spare < verifiers:
        shared = [(cores[index % len(cores)],) for index in range(verifiers + model_drafters)]
        return CorePlan(tuple(shared[:verifiers]), tuple(shared[verifiers:]))
    drafters = tuple((core,) for core in cores[spare:])
    return CorePlan(_deal(cores[:spare], verifiers), drafters)


def _deal(cores: Sequence[int], hands: int) -> tuple[tuple[int, ...], ...]:
    """Runs of neighbouring cores, the longer ones first."""
    size, longer = divmod(len(cores), hands)
    starts = [index * size + min(index, longer) for index in range(hands + 1)]
    return tuple(tuple(cores[a:b]) for a, b in pairwise(starts))
