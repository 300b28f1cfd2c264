"""Which cores the forward uses, and how operations are shared among its threads."""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from services.runtime.affinity import keep_to


def pin(threads: int | None = None, cpus: Collection[int] | None = None) -> None:
    """Run torch with `threads` threads, and this process on `cpus` only; None leaves as is.

    Raises StartError for cpus that this machine does not have.
    """
    keep_to(cpus or ())
    if threads is not None:
        torch.set_num_threads(threads)


GRAIN = 1 << 15
"""Numbers of which each thread gets as many at least, where PyTorch cuts an operation."""


def shared_evenly(threads: int) -> bool:
    """Whether what PyTorch cuts for so many threads has as many equal pieces, each time.

    OpenMP may give an operation fewer threads than were asked for: OMP_THREAD_LIMIT, OMP_DYNAMIC.
    """
    return not _may_vary() and _cut_for(threads)


def _may_vary() -> bool:
    """Whether OpenMP takes as many threads as it thinks best, now and now."""
    return _IS_DYNAMIC is not None and bool(_IS_DYNAMIC())


_IS_DYNAMIC = getattr(ctypes.CDLL(None), "omp_get_dynamic", None)
"""Of the OpenMP that torch has loaded."""


@cache
def _cut_for(threads: int) -> bool:
    """The last number of a piece is computed alone, and so some numbers show where it was cut."""
    marked = _marked()
    if not len(marked):
        return True
    number, size = marked[:1], GRAIN + 1
    made = F.silu(number.expand(threads * size).contiguous())
    return (made == F.silu(number)).nonzero().flatten().tolist() == [
        size * piece - 1 for piece in range(1, threads + 1)
    ]


def _marked() -> Tensor:
    """Numbers of which one alone gives other bits than among others."""
    numbers = torch.linspace(-4.0, 4.0, 1024)
    among = F.silu(numbers)
    alone = torch.cat([F.silu(number) for number in numbers.split_with_sizes([1] * len(numbers))])
    return numbers[among != alone]
