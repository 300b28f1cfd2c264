"""The two tiers of tests: `make test` runs the first one, `make test-all` both.

The first one is for whoever changes something: minutes on two cores, and nothing is tried again.
It holds what is pure, the proofs by enumeration, the store, a model of one architecture, and each
promise of the README once on real processes. A test that is not in it is marked `slow`.
"""

from __future__ import annotations

import re

FIRST = (
    "core/",
    "rules/",
    "proof/",
    "orchestrator/",
    "contracts/",
    "telemetry/",
    "synthetic/",
    "services/",
    "engine/test_port.py",
    "engine/test_trees.py",
    "engine/test_pages.py",
    "engine/test_kv.py",
    "engine/test_selfcheck.py",
    "engine/eagle/test_rows.py",
    "console/test_command_line.py",
    "console/test_cores.py",
    "console/test_demo_table.py",
    "console/test_flags.py",
    "docs/test_links.py",
    "docs/test_readme.py",
    "docs/test_tables.py",
    "docs/test_contributing.py",
    "suite/",
    "processes/test_whole_system.py",
)
"""Folders and files."""
_FIRST = re.compile("|".join(re.escape(place) for place in FIRST))


def is_slow(path: str) -> bool:
    """Whether a file, by its path below `tests`, is in the second tier alone."""
    return _FIRST.match(path) is None
