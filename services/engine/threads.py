"""Which cores the forward uses."""

from __future__ import annotations

from collections.abc import Collection

import torch

from services.runtime.affinity import keep_to


def pin(threads: int | None = None, cpus: Collection[int] | None = None) -> None:
    """Run torch with `threads` threads, and this process on `cpus` only; None leaves as is.

    Raises StartError for cpus that this machine does not have.
    """
    keep_to(cpus or ())
    if threads is not None:
        torch.set_num_threads(threads)
