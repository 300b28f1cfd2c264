"""Redis-compatible servers as a platform team would run them: clusters, sentinels, TLS, an ACL."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from redis.crc import key_slot

from orchestrator.session.ports import SessionKey
from orchestrator.store import codec
from services.contract.errors import StartError
from services.runtime.embedded_redis import find_server
from services.runtime.ports import free_port
from services.runtime.redis_client import DEFAULT_PREFIX
from services.runtime.serving import TlsFiles
from testkit.redis_servers import (
    RedisCluster,
    Watched,
    folder_of_servers,
    form_cluster,
    form_watch,
)  # fmt: skip

RIGHTS = (
    *("~paceline:*", "+@read", "+@write", "+@scripting", "+@transaction", "+@connection"),
    *("+info", "+time", "+wait", "+command", "+cluster|slots", "+cluster|info"),
)
"""What the user of Paceline may do, as docs/operating.md has it."""


@dataclass
class Tls:
    """A server with a certificate of this authority, which wants one of its clients."""

    server: TlsFiles
    client: TlsFiles

    @property
    def told(self) -> tuple[str, ...]:
        return (
            f"tls-cert-file {self.server.cert}",
            f"tls-key-file {self.server.key}",
            f"tls-ca-cert-file {self.server.ca}",
            "tls-auth-clients yes",
            "tls-replication yes",
            "tls-cluster yes",
        )

    @property
    def options(self) -> str:
        """Of a URL."""
        shown = f"ssl_certfile={self.client.cert}&ssl_keyfile={self.client.key}"
        return f"ssl_ca_certs={self.client.ca}&{shown}"

    @property
    def asking(self) -> dict[str, Any]:
        """What `Server.ask` needs."""
        return {
            "ssl": True,
            "ssl_ca_certs": str(self.client.ca),
            "ssl_certfile": str(self.client.cert),
            "ssl_keyfile": str(self.client.key),
        }


@asynccontextmanager
async def redis_cluster(
    *, replicas: bool = False, spare: bool = False
) -> AsyncIterator[RedisCluster]:
    """Three masters that share the slots; `spare`: a fourth without any."""
    with folder_of_servers() as (_, start):
        yield await form_cluster(start, "appendonly no", replicas=replicas, spare=spare)


@asynccontextmanager
async def watched(*told: str, sentinels_told: Sequence[str] = ()) -> AsyncIterator[Watched]:
    """`told`: further configuration, which may name a password."""
    with folder_of_servers() as (_, start):
        yield await form_watch(start, *told, sentinels_told=sentinels_told)


def named_in(owner_of: dict[int, int], port: int, prefix: str = "s") -> SessionKey:
    """A session whose slot is served at a port."""
    for number in range(10_000):
        key = SessionKey("acme", f"{prefix}-{number}")
        if owner_of[slot_of(key)] == port:
            return key
    raise AssertionError("no such name")


def slot_of(key: SessionKey) -> int:
    return int(key_slot(codec.keys_of(DEFAULT_PREFIX, key)[0].encode()))


@cache
def tls_server() -> Path | None:
    """A server that speaks TLS, which the embedded one does not everywhere."""
    candidates = [shutil.which("valkey-server"), shutil.which("redis-server")]
    for program in filter(None, [*map(str, _embedded()), *candidates]):
        # It ends at once: the certificate is missing, or TLS is.
        tried = subprocess.run(
            [program, "--port", "0", "--tls-port", str(free_port()), "--tls-cert-file", "/nowhere"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
        if "Failed to configure TLS" in tried.stdout:
            return Path(program)
    return None


def _embedded() -> list[Path]:
    try:
        return [find_server()]
    except StartError:
        return []
