"""How the C library gives memory back that was freed."""

from __future__ import annotations

import ctypes
import sys

# malloc.h of glibc.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8

LARGE_BLOCK = 256 << 10
"""Bytes; blocks from this size on are the system's own again as soon as they are free."""
SPARE = 1 << 20
ARENAS = 2


def keep_little() -> None:
    """Keep little of what is freed, where this process runs on glibc; to be called at its start.

    By itself glibc has an arena for every thread, and learns from the first large blocks to
    keep those to come: a process that handles messages of megabytes now and then stays as
    large as all its threads ever were. See mallopt(3).
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return
    library.mallopt(_ARENA_MAX, ARENAS)
    library.mallopt(_MMAP_THRESHOLD, LARGE_BLOCK)
    library.mallopt(_TRIM_THRESHOLD, SPARE)
