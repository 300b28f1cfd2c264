"""Which cores this process runs on."""

from __future__ import annotations

import os
from collections.abc import Collection

from services.common.errors import StartError


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
