"""Programs that some tests need besides Python packages."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

_REQUIRED = "PACELINE_REQUIRE_TOOLS"


def tool(name: str, origin: str) -> str:
    """The path of a program; without it the test is skipped, or fails where CI requires it.

    `origin` says where it comes from, e.g. "apt install prometheus".
    """
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        reason = f"{name} is not here ({origin})"
        if os.environ.get(_REQUIRED) == "1":
            pytest.fail(f"{reason}, and {_REQUIRED}=1 wants it")
        pytest.skip(reason)
    return found
