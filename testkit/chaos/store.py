"""The Redis-compatible server of a cluster, behind a proxy."""

import os
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import redis

from orchestrator.session.ports import SessionKey
from orchestrator.store.codec import keys_of
from orchestrator.store.embedded import EmbeddedRedis
from services.runtime.redis_client import DEFAULT_PREFIX
from testkit.chaos.proxy import Network

TENANT = "default"


class Store:
    """A real server that keeps what it acknowledged over a restart; it never ends by itself."""

    role = name = "redis"

    def __init__(self, network: Network) -> None:
        self._server = EmbeddedRedis(append_only=True)
        self._server.start()
        self._socket = self._server.url.removeprefix("unix://")
        self.proxy = network.proxy(lambda: f"unix:{self._socket}")

    @property
    def url(self) -> str:
        """Where the processes of the cluster connect."""
        return f"redis://{self.proxy.address}"

    def restart(self) -> None:
        """SIGTERM, and start it again with what it wrote down."""
        self._server.restart()

    def crash(self) -> None:
        """SIGKILL, and start it again with what it wrote down."""
        self.send(signal.SIGKILL)
        self._server.restart()

    def lose(self) -> None:
        """SIGKILL, and a start without the data, as of a server whose disk is gone."""
        self.send(signal.SIGKILL)
        self._server.end_process()
        shutil.rmtree(Path(self._socket).parent / "appendonlydir")
        self._server.start()

    def send(self, number: signal.Signals) -> None:
        """Send the server a signal."""
        if (pid := self._server.pid) is not None:
            os.kill(pid, number)

    def sessions(self) -> dict[str, str]:
        """The status of every stored session, by (tenant, session) as the key has it."""
        with self._client() as client:
            keys = client.scan_iter(f"{DEFAULT_PREFIX}*:meta", count=1000)
            return {_text(key): _text(client.hget(key, "status")) for key in keys}

    def owned_by(self, owner: str, sessions: Iterable[str]) -> set[str]:
        """Those of these sessions (of the default tenant) that this orchestrator owns."""
        with self._client() as client:
            keys = {one: keys_of(DEFAULT_PREFIX, SessionKey(TENANT, one))[0] for one in sessions}
            return {one for one, key in keys.items() if _text(client.hget(key, "owner")) == owner}

    @property
    def pid(self) -> int:
        """The server's process id; 0 while there is none."""
        return self._server.pid or 0

    def stop(self) -> None:
        """End it for good."""
        self.send(signal.SIGCONT)
        self._server.stop()

    def _client(self) -> Any:
        return redis.Redis(unix_socket_path=self._socket, socket_timeout=10)


def _text(value: bytes | None) -> str:
    return (value or b"").decode()
