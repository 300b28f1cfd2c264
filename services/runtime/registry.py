"""The worker registry in Redis: who serves which role, where, and how busy it is.

See `presence` for how entries live.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from services.contract.types import Progress, Role, WorkerDescription
from services.runtime.presence import Presence, Roster
from services.runtime.record_types import checked

log = logging.getLogger(__name__)

_ENTRY_VERSION = 1
MOST_ZONE = 63
"""Characters, as in a label of Kubernetes."""
WORKERS = "workers"
_ADDRESS = re.compile(r"[\w.\-]{1,255}:\d{1,5}|\[[0-9A-Fa-f:.%\w]{2,64}\]:\d{1,5}", re.ASCII)


@dataclass(frozen=True, slots=True)
class RegisteredWorker:
    """A worker that sent a heartbeat lately; `address` is HOST:PORT, `zone` '' if not known."""

    description: WorkerDescription
    address: str
    load: Progress = field(default_factory=Progress)
    zone: str = ""


Workers = list[RegisteredWorker]


class Registration(Presence):
    """A worker's entry. Use one object for each role of a process."""

    def __init__(
        self,
        redis_url: str,
        description: WorkerDescription,
        address: str,
        load: Callable[[], Progress] = Progress,
        *,
        zone: str = "",
        **options: Any,
    ) -> None:
        """`load` is asked at every heartbeat, on the event loop: it must be cheap.

        `options`: those of `Presence`.
        """
        worker = RegisteredWorker(description, address, zone=zone)
        name = f"{description.role.value}/{description.worker_id}"
        super().__init__(
            redis_url, WORKERS, name, lambda: _encode(replace(worker, load=load())), **options
        )


class WorkerRegistry(Roster):
    """Reads the registry."""

    def __init__(self, redis_url: str, **options: Any) -> None:
        """`options`: those of `Roster`."""
        super().__init__(redis_url, WORKERS, **options)

    async def list(self, role: Role | None = None) -> Workers:
        """The workers that are alive, by name; of one role, if given. Raises StoreError."""
        return _workers(await self.texts(), role)

    async def news(self) -> Workers | None:
        """All workers that are alive, if any came or went since the last call; else None.

        Raises StoreError.
        """
        texts = await self.changed()
        return None if texts is None else _workers(texts)


def _workers(texts: Sequence[bytes], role: Role | None = None) -> Workers:
    found = [worker for text in texts if (worker := _decode(text))]
    return sorted(
        (worker for worker in found if role in (None, worker.description.role)),
        key=lambda worker: (worker.description.role.value, worker.description.worker_id),
    )


def _encode(worker: RegisteredWorker) -> str:
    description = asdict(worker.description) | {"role": worker.description.role.value}
    entry = {
        "version": _ENTRY_VERSION,
        "address": worker.address,
        "description": description,
        "load": asdict(worker.load),
        "zone": worker.zone,
    }
    return json.dumps(entry, separators=(",", ":"))


def _decode(text: bytes) -> RegisteredWorker | None:
    """The worker of an entry; None when another version wrote what we cannot read."""
    try:
        known: dict[str, Any] = json.loads(text)
        description = _known_fields(WorkerDescription, known["description"])
        description["role"] = Role(description["role"])
        for name in ("methods", "capabilities", "state_layers"):
            description[name] = tuple(description.get(name, ()))
        load = checked(Progress, _known_fields(Progress, known.get("load", {})))
        return RegisteredWorker(
            checked(WorkerDescription, description),
            _address(known["address"]),
            load,
            zone_of(known),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        log.warning("registry: an entry cannot be read")
        return None


def _address(value: object) -> str:
    """HOST:PORT; ValueError for anything else."""
    if not isinstance(value, str) or not _ADDRESS.fullmatch(value):
        raise ValueError("no address")
    return value


def zone_of(entry: dict[str, Any]) -> str:
    """The zone in an entry; '' where it tells none that can be one."""
    zone = entry.get("zone", "")
    return zone if isinstance(zone, str) and len(zone) <= MOST_ZONE else ""


def _known_fields(record: type, values: dict[str, Any]) -> dict[str, Any]:
    """The values that the record has fields for: a newer worker may send more."""
    names = {known.name for known in fields(record)}
    return {name: value for name, value in values.items() if name in names}
