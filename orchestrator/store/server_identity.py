"""Which server answers, and whether it may have lost writes that another acknowledged."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple
from weakref import WeakSet

from redis import exceptions

from orchestrator.store.command import pack
from services.runtime.redis_client import is_away

log = logging.getLogger(__name__)

_NO_REPLICATION = "0" * 40
_WHO = pack("INFO", "server") + pack("INFO", "replication")


class Identity(NamedTuple):
    """What INFO says of a server: its process, and the history its data belongs to."""

    run_id: str
    replid: str
    former_replid: str


def parse_identity(*sections: bytes) -> Identity | None:
    """The identity in sections of INFO; None where the server gives none."""
    lines = b"\n".join(sections).decode(errors="replace").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    run_id = fields.get("run_id", "")
    if not run_id:
        return None
    former = fields.get("master_replid2", _NO_REPLICATION)
    return Identity(run_id, fields.get("master_replid", ""), former)


def shows_loss(before: Identity, now: Identity) -> bool:
    """Whether `now` may have less than `before` acknowledged.

    Another process may have started from an older snapshot, or from none, or be a
    replica that lagged behind. The same process has it, too, once it went through a
    failover: its history then names a former one. A history that merely changed its
    name (a backlog without replicas was freed) is no loss.
    """
    if before.run_id != now.run_id:
        return True
    return before.replid != now.replid and now.former_replid != _NO_REPLICATION


class ServerIdentity:
    """Asks every new connection who it leads to, and counts the losses that shows."""

    def __init__(self) -> None:
        self.losses = 0
        self._known: Identity | None = None
        self._watched: WeakSet[Any] = WeakSet()
        self._asked: WeakSet[Any] = WeakSet()

    async def meet(self, connection: Any) -> None:
        """Ask, if the connection was made since it was last asked."""
        if connection not in self._watched:
            self._watched.add(connection)
            connection.register_connect_callback(self._reconnected)
        if connection not in self._asked:
            await self.ask(connection)
            self._asked.add(connection)

    async def ask(self, connection: Any) -> None:
        """Ask who answers now. A server that does not say never shows a loss."""
        # Together: a server that is far away is asked once.
        await connection.send_packed_command(_WHO)
        identity = parse_identity(await _info(connection), await _info(connection))
        if identity is None:
            return
        if self._known is not None and shows_loss(self._known, identity):
            self.losses += 1
            log.warning("session store: another server, or one after a failover, answers")
        self._known = identity

    async def _reconnected(self, connection: Any) -> None:
        self._asked.discard(connection)


async def _info(connection: Any) -> bytes:
    try:
        answer = await connection.read_response(disable_decoding=True)
    except exceptions.ResponseError as error:
        if is_away(error):
            raise
        # The user may not ask, or the server knows no INFO.
        return b""
    return answer if isinstance(answer, bytes) else b""
