"""The two tiers of tests: `make test` runs the first one, `make test-all` every test.

The first one is for whoever changes something: minutes on two cores, and nothing is tried again.
It holds what is pure, the proofs by enumeration, the store, a model of one architecture, and each
promise of the README once on real processes. A test that is not in it is marked `slow`.
"""

from __future__ import annotations

import re

from tests.models import ARCHITECTURES

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
    "processes/test_loop_floor.py",
    "processes/test_whole_system.py",
)
"""Folders and files below `tests`."""
EXCEPT = (
    "proof/test_crash_points.py",
    "proof/test_forms_crash_points.py",
    "proof/test_wrong_services.py",
    *(f"proof/test_{what}_law.py" for what in ("eagle", "forms", "services", "skip", "text")),
    "proof/test_skip_search_law.py",
    "rules/test_coupled.py::test_a_hundred_thousand_tokens",
    "suite/test_promises.py",
    "orchestrator/test_chat_templates.py",
    "orchestrator/test_long_texts.py",
    "orchestrator/test_response_formats.py",
    "orchestrator/test_template_bounds.py",
    "orchestrator/test_text_tokenizer.py",
    "services/test_drafter_faults.py",
    "services/test_running_faults.py",
    *(
        f"services/test_drafter_{method}.py"
        for method in ("ahead", "combined", "lookahead", "skip", "skip_search", "text")
    ),
)
"""Files and tests of theirs that take minutes, or bound seconds, as a busy machine may not."""
_OTHERS = "|".join({*ARCHITECTURES} - {"llama"} | {"batch_invariant", "blocks_of_tokens"})
_FIRST = re.compile("|".join(map(re.escape, FIRST)))
_SECOND = re.compile(
    rf"{'|'.join(map(re.escape, EXCEPT))}|engine/.*\[.*(?<![a-z])({_OTHERS})(?![a-z])"
)


def is_slow(name: str) -> bool:
    """Whether a test, or its file, is in the second tier alone; its node id below `tests`."""
    return _FIRST.match(name) is None or _SECOND.match(name) is not None
