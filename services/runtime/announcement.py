"""Announces that a worker serves: its entries in the registry, and its ready file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.contract.types import Progress, WorkerDescription
from services.runtime.readyfile import write_line
from services.runtime.registry import Registration


@dataclass(frozen=True, slots=True)
class AnnounceOptions:
    """Where to announce; `advertise` (host:port) replaces the address listened on."""

    redis: str | None = None
    advertise: str = ""
    ready_file: Path | None = None
    zone: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """The registry entry of one role; `progress` goes with every heartbeat."""

    description: WorkerDescription
    progress: Callable[[], Progress]


class Announcement:
    """`publish` and `withdraw` are the notices that `serving.serve_worker` takes."""

    def __init__(self, options: AnnounceOptions, entries: Sequence[Entry]) -> None:
        """Announce all roles of a process together."""
        self._options = options
        self._entries = entries
        self._registrations: list[Registration] = []

    async def publish(self, address: str) -> None:
        """Called once requests are served at `address`. Raises StartError."""
        if self._options.redis is not None:
            advertised = self._options.advertise or address
            for entry in self._entries:
                registration = Registration(
                    self._options.redis,
                    entry.description,
                    advertised,
                    entry.progress,
                    zone=self._options.zone,
                )
                await registration.start()
                self._registrations.append(registration)
        if self._options.ready_file is not None:
            write_line(self._options.ready_file, address)

    async def withdraw(self, _address: str = "") -> None:
        """No new sessions from now on; may be repeated."""
        for registration in self._registrations:
            await registration.stop()
