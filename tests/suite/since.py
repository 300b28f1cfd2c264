"""Which tests of another commit are in no tier: `python -m tests.suite.since COMMIT`.

Each must stand in `gone.txt`, with the reason: a node id, or what several have around a `*`, a tab,
why.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.docs.pages import ROOT

GONE = Path(__file__).with_name("gone.txt")


def reasons() -> dict[str, str]:
    """By node id, or pattern of some, why these tests are there no longer."""
    lines = (line for line in GONE.read_text("utf-8").splitlines() if line.strip())
    return dict(line.split("\t", 1) for line in lines)


def node_ids(checkout: Path) -> set[str]:
    """Every test that pytest collects in a checkout, `proof` and `faults` among them."""
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-m", "")
    done = subprocess.run(
        [*command, "-q", "-o", "addopts="],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=True,
    )
    # What a message of protobuf says has one space or two, as it likes.
    return {re.sub(" +", " ", line) for line in done.stdout.splitlines() if "::" in line}


def lost(before: set[str], now: set[str], gone: Iterable[str]) -> list[str]:
    """The tests that were there before, are not now, and have no reason."""
    return sorted(before - now - set(named(before, gone)))


def named(ids: set[str], gone: Iterable[str]) -> list[str]:
    """Those of these tests that the list of reasons names."""
    exact = set(gone)
    around = [one.partition("*")[::2] for one in exact if "*" in one]
    return [
        one
        for one in ids
        if one in exact or any(one.startswith(start) and one.endswith(end) for start, end in around)
    ]


def main() -> int:
    """Print what is lost since a commit; the exit status (1 = something is)."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "checkout"
        add = ("git", "worktree", "add", "--quiet", "--detach", str(place), sys.argv[1])
        subprocess.run(add, cwd=ROOT, check=True)
        try:
            before = node_ids(place)
        finally:
            remove = ("git", "worktree", "remove", "--force", str(place))
            subprocess.run(remove, cwd=ROOT, check=True)
    now = node_ids(ROOT)
    missing = lost(before, now, reasons())
    print("\n".join(missing))
    print(
        f"{len(before)} tests before, {len(now)} now, {len(now - before)} new, {len(missing)} lost"
    )
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
