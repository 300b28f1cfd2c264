"""The thread that a worker's core runs in."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

logger = logging.getLogger(__name__)


class Turns(Protocol):
    """Something that takes turns in a thread. What it raises ends them."""

    @property
    def waiting(self) -> bool:
        """Whether it has something to do; asked with the thread's condition held."""

    @property
    def patience(self) -> float:
        """Seconds after which it wants a turn even without input; 0 = never.

        Asked with the thread's condition held.
        """

    def turn(self) -> None:
        """Do some of it."""

    def fail(self, error: Exception, /) -> None:
        """No turn will follow: it raised `error`."""


class CoreThread:
    """A thread in which something takes turns.

    Notify `changed` whenever there is something to do again.
    """

    def __init__(self, member: Turns) -> None:
        self.changed = threading.Condition()
        self._member = member
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="worker-core", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Turns begin."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """No turn begins any more; wait at most `timeout` seconds for the running one."""
        with self.changed:
            self._stopped = True
            self.changed.notify_all()
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while self._wait():
                self._member.turn()
        except Exception as error:
            logger.exception("the worker's core failed")
            self._member.fail(error)

    def _wait(self) -> bool:
        """Wait until there is something to do, or patience ends; False = it was stopped."""
        member = self._member
        with self.changed:
            patience = member.patience if member.patience > 0 else None
            self.changed.wait_for(lambda: self._stopped or member.waiting, patience)
            return not self._stopped
