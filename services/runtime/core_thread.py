"""The thread that workers' cores run in, alone or taking turns."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

logger = logging.getLogger(__name__)


class Turns(Protocol):
    """Something that takes turns in a thread. What it raises ends them for all."""

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
        """No turn will follow: this member, or another of this thread, raised `error`."""


class CoreThread:
    """A thread whose members take turns, in the order they were added.

    It starts with the first member and ends with the last. Notify `changed` whenever a
    member has something to do again.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._members: list[Turns] = []
        self._turning: list[Turns] = []
        self._thread = threading.Thread(target=self._run, name="worker-core", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    def add(self, member: Turns) -> None:
        """Add a member, which takes turns from now on."""
        with self.changed:
            self._members.append(member)
            self.changed.notify_all()
            if len(self._members) == 1:
                self._thread.start()

    def remove(self, member: Turns, timeout: float) -> None:
        """Remove a member; wait at most `timeout` seconds for its running turn."""
        with self.changed:
            self._members = [other for other in self._members if other is not member]
            self.changed.notify_all()
            self.changed.wait_for(lambda: member not in self._turning, timeout)
            last = not self._members
        if last:
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while self._wait():
                for member in self._turning:
                    member.turn()
        except Exception as error:
            logger.exception("the worker's core failed")
            for member in self._end():
                member.fail(error)
        finally:
            self._end()

    def _wait(self) -> bool:
        """Wait until a member has something to do, or its patience ends; False = none is left."""
        with self.changed:
            self._turning = []
            self.changed.notify_all()
            self.changed.wait_for(
                lambda: not self._members or any(one.waiting for one in self._members),
                min((one.patience for one in self._members if one.patience > 0), default=None),
            )
            self._turning = list(self._members)
            return bool(self._turning)

    def _end(self) -> list[Turns]:
        """End all turns; the members that were left."""
        with self.changed:
            turning, self._turning = self._turning, []
            self.changed.notify_all()
            return turning
