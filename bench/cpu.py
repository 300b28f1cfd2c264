"""CPU time of another process."""

from __future__ import annotations

from pathlib import Path

import psutil


def cpu_seconds(pid: int) -> float | None:
    """CPU time that a process has used, user and system, of all its threads; None when it is gone.

    From the scheduler's own account (nanoseconds) where there is one; else to 10 ms.
    """
    try:
        tasks = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
        if tasks:
            return sum(int(task.read_text().split()[0]) for task in tasks) * 1e-9
        times = psutil.Process(pid).cpu_times()
    except (OSError, ValueError, IndexError, psutil.Error):
        return None
    return float(times.user + times.system)
