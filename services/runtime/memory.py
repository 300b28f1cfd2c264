"""Have the C library return freed memory to the system."""

from __future__ import annotations

import ctypes
import sys

# malloc.h of glibc.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8

LARGE_BLOCK = 256 << 10
"""Bytes; larger blocks return to the system as soon as they are freed."""
SPARE = 1 << 20
ARENAS = 2


def keep_little() -> None:
    """Keep little freed memory, if this process runs on glibc; call it at the start.

    By default glibc has an arena for every thread, and keeps large blocks after the first
    ones: a process that sometimes handles messages of megabytes stays as large as all its
    threads ever were. See mallopt(3).
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return
    library.mallopt(_ARENA_MAX, ARENAS)
    library.mallopt(_MMAP_THRESHOLD, LARGE_BLOCK)
    library.mallopt(_TRIM_THRESHOLD, SPARE)
