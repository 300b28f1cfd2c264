"""Which cores the forward uses."""

from __future__ import annotations

import os
from collections.abc import Collection

import torch

from services.common.errors import StartError


def pin(threads: int | None = None, cpus: Collection[int] | None = None) -> None:
    """Run torch with `threads` threads, and this process on `cpus` only; None leaves as is.

    Raises StartError for cpus that this machine does not have.
    """
    if cpus:
        try:
            os.sched_setaffinity(0, cpus)
        except (AttributeError, OSError) as error:
            raise StartError(f"cannot pin to cpus {sorted(cpus)}: {error}") from error
    if threads is not None:
        torch.set_num_threads(threads)
