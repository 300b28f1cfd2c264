"""Ties a process to the one that started it.

The tie is made by the child itself, before anything heavy is imported: a hook between fork
and exec would run in a process that may hold threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` is gone (Linux only).

    More exactly when the thread of it that started this process has ended.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit("the process that started this one is gone")
