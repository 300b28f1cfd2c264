"""Which cores this process runs on, and who goes first there."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from services.contract.errors import StartError


def keep_to(cpus: Collection[int]) -> None:
    """Run this thread, and those that it starts from now on, on `cpus` only; none = anywhere.

    Raises StartError for cpus that this machine does not have.
    """
    if not cpus:
        return
    try:
        os.sched_setaffinity(0, cpus)
    except (AttributeError, OSError) as error:
        raise StartError(f"cannot pin to cpus {sorted(cpus)}: {error}") from error


def give_way(niceness: int) -> None:
    """Stand behind (below 0: before) other processes by so many steps of nice, at most 19.

    Where the kernel shares CPU out by session first (sched_autogroup), as on most machines
    that are no container, a nice value counts within the session alone: so the session, which
    is to be this process's own, is told as well. Without the right to go first, nothing is.
    """
    with suppress(PermissionError):
        os.nice(niceness)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(niceness))
