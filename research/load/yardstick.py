"""How fast this machine's cores are right now, which other work on them changes.

A core whose twin is busy, or whose caches are, needs more CPU time for the same work.
A fixed piece of plain Python, timed all along, says how much more.
"""

import time

_TURNS = 20_000


def stroke() -> float:
    """CPU milliseconds for the fixed piece of work."""
    began = time.thread_time()
    total = 0
    for turn in range(_TURNS):
        total += turn & 7
    return 1e3 * (time.thread_time() - began)
