"""What was freed is the system's again, in a process that was told to keep little."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from pathlib import Path
from services.runtime.memory import keep_little

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

if sys.argv[1] == "told":
    keep_little()
before, small = resident(), []
# The first large block that is freed teaches the C library to keep those to come.
b"x" * (20 << 20)
large = []
for _ in range(40):
    large.append(b"x" * (4 << 20))
    small.append(b"y" * (100 << 10))
del large
print(resident() - before)
"""


AROUND = """
import sys, threading
from services.runtime.memory import returning_memory

def taken():
    small, large = [], []
    b"x" * (20 << 20)
    for _ in range(40):
        large.append(b"x" * (4 << 20))
        small.append(b"y" * (100 << 10))
    kept.append(small)

def grow():
    before = resident()
    thread = threading.Thread(target=taken)
    thread.start()
    thread.join()
    return resident() - before

kept = []
with returning_memory():
    within = grow()
after = grow()
print(within if sys.argv[1] == "within" else after)
"""


def grown(how, program=PROGRAM):
    """MiB that are left of 160, where small blocks lie between large ones that were freed."""
    command = [sys.executable, "-c", program, how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's way")
def test_large_blocks_that_were_freed_are_kept_only_by_a_process_that_was_not_told():
    assert grown("told") < 20
    assert grown("untold") > 100


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's way")
def test_a_start_keeps_nothing_that_it_freed_and_steps_after_it_do():
    program = PROGRAM.partition("if sys.argv")[0] + AROUND
    assert grown("within", program) < 20
    assert grown("after", program) > 20
