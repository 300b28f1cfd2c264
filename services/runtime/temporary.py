"""The folder for temporary files, where it has no room."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from services.contract.errors import PacelineError, StartError

_ELSEWHERE = "make room, or name another folder with TMPDIR"
_FULL_BYTES = 1 << 20
"""With less free a disk counts as full: what did not fit may be gone by now."""


@contextmanager
def for_temporary_files(*failures: type[Exception]) -> Iterator[None]:
    """Work that writes temporary files; StartError, saying what to do, where they have no room.

    `failures`: what else goes wrong for this reason, as processes end whose logs have no room.
    """
    caught: tuple[type[Exception], ...] = (OSError, PacelineError, *failures)
    try:
        yield
    except caught as error:
        if full := _without_room():
            raise StartError(f"{full}; {_ELSEWHERE} ({error})") from error
        raise


def _without_room() -> str:
    """What there is no room for; empty where there is some."""
    try:
        folder = tempfile.gettempdir()
        return f"{folder} is full" if shutil.disk_usage(folder).free < _FULL_BYTES else ""
    except OSError:
        return "no folder for temporary files can be written"
