"""`python -m tests.fuzz --messages N --seed S`: fuzz every service at length.

Ends with status 1 if any answer was improper, anything was logged that must not be,
or anything was left behind.
"""

import argparse
import sys
import time
from random import Random

from tests.fuzz.arena import Arena, resident_mebibytes

BATCH = 1000


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    began, random = time.monotonic(), Random(asked.seed)
    with Arena() as arena:
        found = arena.findings
        while found.messages < asked.messages and not found.wrong:
            arena.fuzz(random, BATCH)
            arena.settle()
            print(_line(found.messages, began), end="\r", file=sys.stderr, flush=True)
    print(_line(found.messages, began), f"seed {asked.seed}")
    for code, count in sorted(found.codes.items()):
        print(f"  {count:7d} calls: {code}")
    for problem in found.wrong:
        print(f"WRONG {problem}")
    return 1 if found.wrong else 0


def _line(messages: int, began: float) -> str:
    took = time.monotonic() - began
    return f"{messages} messages in {took:.0f} s, {resident_mebibytes():.0f} MiB resident"


if __name__ == "__main__":
    raise SystemExit(main())
