"""The `paceline` command, which lives in the checkout; the wheel holds the client only."""

from __future__ import annotations

import importlib
import sys

_CONSOLE = "services.console.main"
_ABSENT = (
    "paceline: this wheel holds the client only (import paceline); "
    "the command runs from a checkout or an image of Paceline"
)


def main() -> int:
    """Run the command; 2 when it is not installed."""
    try:
        console = importlib.import_module(_CONSOLE)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{_CONSOLE}.".startswith(f"{error.name}."):
            raise
        print(_ABSENT, file=sys.stderr)
        return 2
    return console.main() or 0


if __name__ == "__main__":
    sys.exit(main())
