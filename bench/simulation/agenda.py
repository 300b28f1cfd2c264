"""What happens when: events in order of time, devices, and links that keep their order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any


class Agenda:
    """Calls to be made, in order of time; those of one moment in the order they were planned."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds."""
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0

    def at(self, time: float, call: Callable[..., None], *arguments: Any) -> None:
        """Make a call at a time, or at once if that has passed."""
        self._planned += 1
        heapq.heappush(self._heap, (max(time, self.now), self._planned, call, arguments))

    def after(self, milliseconds: float, call: Callable[..., None], *arguments: Any) -> None:
        """Make a call in so many milliseconds."""
        self.at(self.now + 1e-3 * milliseconds, call, *arguments)

    def run(self) -> None:
        """Until nothing is planned any more."""
        heap = self._heap
        while heap:
            self.now, _, call, arguments = heapq.heappop(heap)
            call(*arguments)


class Device:
    """What computes for the workers of one node: one forward at a time, in the order asked."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._free_at = 0.0

    @property
    def free_from(self) -> float:
        """When the next forward can begin, in seconds."""
        return max(self._agenda.now, self._free_at)

    def run(self, milliseconds: float, call: Callable[..., None], *arguments: Any) -> None:
        """Make the call when a forward that is asked for now is over."""
        self._free_at = self.free_from + 1e-3 * milliseconds
        self._agenda.at(self._free_at, call, *arguments)


class Link:
    """One way from one process to another: messages take `hop_ms` and up to `jitter_ms` more.

    Like a stream of gRPC it keeps their order: a late message holds up those behind it.
    """

    def __init__(self, agenda: Agenda, hop_ms: float, jitter_ms: float, random: Random) -> None:
        self._agenda = agenda
        self._hop_ms = hop_ms
        self._jitter_ms = jitter_ms
        self._random = random
        self._last = 0.0

    def send(self, deliver: Callable[..., None], *message: Any) -> None:
        """Have `deliver(*message)` called at the other end."""
        took = self._hop_ms
        if self._jitter_ms:
            took += self._jitter_ms * self._random.random()
        self._last = max(self._last, self._agenda.now + 1e-3 * took)
        self._agenda.at(self._last, deliver, *message)
