"""Which cores this process runs on, and its CPU priority there."""

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


def available_cores() -> tuple[int, ...]:
    """The cores this process may use, in order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def give_way(niceness: int) -> None:
    """Lower (below 0: raise) this process's priority by so many steps of nice, at most 19.

    Where the kernel shares CPU by session first (sched_autogroup), as on most machines outside
    containers, nice counts within a session only. So this sets the session's value, too; the
    session must be this process's own. Without the right to raise priority nothing changes.
    """
    with suppress(PermissionError):
        os.nice(niceness)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(niceness))
