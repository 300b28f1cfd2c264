"""Have the C library return freed memory to the system."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# malloc.h of glibc.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8

LARGE_BLOCK = 256 << 10
"""Bytes; larger blocks return to the system as soon as they are freed."""
SPARE = 1 << 20
KEPT_BLOCK = 32 << 20
"""What glibc comes to by itself for blocks that it keeps."""
ARENAS = 2


def keep_little() -> None:
    """Keep little freed memory, if this process runs on glibc; call it at the start.

    By default glibc has an arena for every thread, and keeps large blocks after the first
    ones: a process that sometimes handles messages of megabytes stays as large as all its
    threads ever were. See mallopt(3).
    """
    library = _glibc()
    if library is not None:
        library.mallopt(_ARENA_MAX, ARENAS)
        library.mallopt(_MMAP_THRESHOLD, LARGE_BLOCK)
        library.mallopt(_TRIM_THRESHOLD, SPARE)


@contextmanager
def returning_memory() -> Iterator[None]:
    """Keep no freed memory meanwhile, and none that is free at the end.

    A start takes much for a moment, in many threads: glibc would keep nearly half as much as a
    small model takes. Afterwards blocks are kept as by default, for the next step needs them again.
    """
    library = _glibc()
    if library is None:
        yield
        return
    library.mallopt(_MMAP_THRESHOLD, LARGE_BLOCK)
    try:
        yield
    finally:
        library.mallopt(_MMAP_THRESHOLD, KEPT_BLOCK)
        library.mallopt(_TRIM_THRESHOLD, 2 * KEPT_BLOCK)
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None
