"""Tells others that a worker serves: its entry in the registry, and its ready file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from services.common.readyfile import write_line
from services.common.registry import Registration
from services.common.types import Progress, WorkerDescription


@dataclass(frozen=True, slots=True)
class AnnounceOptions:
    """Where to announce; `advertise` (host:port) replaces the address listened on."""

    redis: str | None = None
    advertise: str = ""
    ready_file: Path | None = None


class Announcement:
    """`publish` and `withdraw` are the notices that `serving.serve_worker` takes."""

    def __init__(
        self,
        options: AnnounceOptions,
        description: WorkerDescription,
        progress: Callable[[], Progress],
    ) -> None:
        self._options = options
        self._description = description
        self._progress = progress
        self._registration: Registration | None = None

    async def publish(self, address: str) -> None:
        """Called once requests are served at `address`. Raises StartError."""
        if self._options.redis is not None:
            advertised = self._options.advertise or address
            self._registration = Registration(
                self._options.redis, self._description, advertised, self._progress
            )
            await self._registration.start()
        if self._options.ready_file is not None:
            write_line(self._options.ready_file, address)

    async def withdraw(self, _address: str = "") -> None:
        """No new sessions from now on; may be repeated."""
        if self._registration is not None:
            await self._registration.stop()
