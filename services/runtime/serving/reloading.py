"""Files that are read again when they change, such as certificates and secrets."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from services.contract.errors import StartError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_Stamp = tuple[tuple[int, int, int] | None, ...]


class Reloading(Generic[T]):
    """The value of some files; safe in any thread.

    Changed files that cannot be used are logged once, and the previous value stays in
    force until they change again.
    """

    def __init__(self, files: Sequence[Path], load: Callable[[], T]) -> None:
        """Reads at once. `load` raises StartError, whose message quotes no content."""
        self._files = tuple(files)
        self._load = load
        self._lock = threading.Lock()
        self._seen = self._stamp()
        self._value = load()

    def current(self) -> T:
        """The newest usable value; the same object until the files change."""
        with self._lock:
            # Before reading: a change meanwhile is then seen the next time.
            stamp = self._stamp()
            if stamp != self._seen:
                self._seen = stamp
                self._reload()
            return self._value

    def _reload(self) -> None:
        try:
            self._value = self._load()
        except StartError as error:
            logger.warning("%s; going on with what was read before", error)
        else:
            logger.info("read again: %s", ", ".join(map(str, self._files)))

    def _stamp(self) -> _Stamp:
        return tuple(map(_stamp_of, self._files))


def _stamp_of(file: Path) -> tuple[int, int, int] | None:
    """What tells two states of a file apart; None while there is none."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
