"""The orchestrators of a cluster, as far as each must know of the others: names and zones."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.workers.subset import Member
from services.runtime.presence import Presence, Roster
from services.runtime.registry import zone_of

_GROUP = "orchestrators"
_VERSION = 1
_MOST_NAME = 256


class Peer(Presence):
    """This orchestrator's entry."""

    def __init__(self, redis_url: str, me: Member, **options: Any) -> None:
        """`options`: those of `Presence`."""
        entry = json.dumps({"version": _VERSION, "name": me.name, "zone": me.zone})
        super().__init__(redis_url, _GROUP, me.name, lambda: entry, **options)


class Peers(Roster):
    """Reads the entries of all."""

    def __init__(self, redis_url: str, **options: Any) -> None:
        """`options`: those of `Roster`."""
        super().__init__(redis_url, _GROUP, **options)

    async def news(self) -> list[Member] | None:
        """All that live, if any came or went since the last call; else None. Raises StoreError."""
        texts = await self.changed()
        if texts is None:
            return None
        return [member for text in texts if (member := _member(text)) is not None]


def _member(text: bytes) -> Member | None:
    """None for what another version or somebody else wrote."""
    try:
        entry = json.loads(text)
        name = entry["name"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME:
        return None
    return Member(name, zone_of(entry))
