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


def grown(how):
    """MiB that are left of 160, where small blocks lie between large ones that were freed."""
    command = [sys.executable, "-c", PROGRAM, how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's way")
def test_large_blocks_that_were_freed_are_kept_only_by_a_process_that_was_not_told():
    assert grown("told") < 20
    assert grown("untold") > 100
