"""Options of the last release that there are no more: what gives one is told what to do instead.

They go with the next release.
"""

from __future__ import annotations

import os

from services.contract.errors import StartError
from services.runtime.options import PREFIX

GONE = {
    "protocol": "there is one protocol; leave it out",
    "fallback": "give --pacing eager to draft whether it pays or not, else leave it out",
    "chained-blocks": "a verifier runs its sessions without being asked; leave it out",
    "gather-ms": "a verifier waits for no session; leave it out",
}
"""By key, as in a file."""


def refuse_flag(on: str) -> None:
    """Raise StartError if a flag, or its opposite, was one of the last release."""
    key = on.removeprefix("--").removeprefix("no-")
    if key in GONE:
        raise StartError(_sentence(on, key))


def refuse_key(key: str, where: str) -> None:
    """Raise StartError, which begins with `where`, if a key of a file was one."""
    if key in GONE:
        raise StartError(f"{where}: {_sentence(key, key)}")


def refuse_variables() -> None:
    """Raise StartError for a variable of such an option."""
    for key in GONE:
        name = PREFIX + key.replace("-", "_").upper()
        if os.environ.get(name):
            raise StartError(_sentence(name, key))


def _sentence(given: str, key: str) -> str:
    return f"{given} is no longer there: {GONE[key]}"
