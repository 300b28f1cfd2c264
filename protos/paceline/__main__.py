"""The `paceline` command: puts the servers' code on the path and runs it.

Installed, that code lies in `_application`, where this command and the processes that it starts
find it, and nobody else does. In a checkout it lies at the root, which is on the path.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

APPLICATION = Path(__file__).with_name("_application")
_VARIABLE = "PYTHONPATH"


def main() -> int:
    """Run the command; the exit status."""
    if APPLICATION.is_dir():
        find_application(str(APPLICATION))
    return importlib.import_module("services.console.main").main() or 0


def find_application(folder: str) -> None:
    """Put the folder first on the path of this process and of those that it starts."""
    sys.path.insert(0, folder)
    others = os.environ.get(_VARIABLE, "").split(os.pathsep)
    paths = [folder, *(path for path in others if path not in ("", folder))]
    os.environ[_VARIABLE] = os.pathsep.join(paths)


if __name__ == "__main__":
    sys.exit(main())
