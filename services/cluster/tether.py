"""Ties a process to the one that started it, and lists the available cores."""

from __future__ import annotations

import os

from services.runtime.tether import die_with

__all__ = ["available_cores", "die_with"]


def available_cores() -> tuple[int, ...]:
    """The cores this process may use, in order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))
