"""What sessions have to do, a little of it in each turn of the loop.

A loop reads one message of a link in a turn. If all sessions did their work in one, frames would
wait unread for as long as that takes, be late for the drafter, and pile up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

SLICE = 0.001
"""Seconds."""


class Soon(Protocol):
    """As much of an event loop as is used."""

    def call_soon(self, callback: Callable[[], object]) -> object:
        """Call it behind what happens now."""
        ...


class Slices:
    """Acts that are done in their order. For one event loop."""

    def __init__(self, loop: Soon, clock: Callable[[], float]) -> None:
        """`clock` in seconds."""
        self._loop, self._clock = loop, clock
        self._acts: deque[Callable[[], object]] = deque()
        self._called = False

    def add(self, act: Callable[[], object]) -> None:
        """Do this, behind what was added before."""
        self._acts.append(act)
        self._call()

    def _call(self) -> None:
        if not self._called:
            self._called = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        """One slice; an act that raises ends it, and the others follow."""
        self._called, until = False, self._clock() + SLICE
        try:
            while self._acts:
                self._acts.popleft()()
                if self._clock() >= until:
                    break
        finally:
            if self._acts:
                self._call()
