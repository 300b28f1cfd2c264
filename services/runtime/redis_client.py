"""One way to reach Redis: the URL, the client's options, and what its errors mean."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, cast

from redis import exceptions
from redis.asyncio import (
    BlockingConnectionPool,
    Connection,
    Redis,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider

from services.contract.errors import StartError
from services.runtime import redis_url
from services.runtime.atomic_file import read_bytes
from services.runtime.redis_cluster import RedisCluster
from services.runtime.redis_url import Login, RedisUrl
from services.runtime.serving.reloading import Reloading

DEFAULT_PREFIX = "paceline:"
Client = Redis | RedisCluster

# The server cannot serve for now: a restart, a failover, a network fault, a full memory. Try again.
AWAY = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    exceptions.OutOfMemoryError,
    exceptions.RedisClusterException,
    OSError,
)
# What a call may raise at all. uvloop adds a bare RuntimeError: a transport that it has closed
# is not known as lost to redis-py until the next command is written to it.
FAULTS = (exceptions.RedisError, exceptions.RedisClusterException, OSError, RuntimeError)
_UVLOOP_CLOSED = "the handler is closed"
# A server that is there and refuses for a while; by code, as redis-py has a class for some alone,
# and as older servers wrap what a script was refused: "Error running script …: -OOM command …".
_FOR_NOW = re.compile(
    r"(?:^|\s-)(OOM|MISCONF|BUSY|LOADING|READONLY|TRYAGAIN|CLUSTERDOWN|MASTERDOWN|NOREPLICAS)\s"
)
# Trying again will not help, although redis-py counts these as connection errors.
_REFUSED_LOGIN = (
    exceptions.AuthenticationError,
    exceptions.AuthorizationError,
    exceptions.NoPermissionError,
)
_ONCE: dict[str, Any] = {"retry": Retry(NoBackoff(), 0)}


class TooFewReplicas(exceptions.ConnectionError):
    """A write is on fewer replicas than were asked for; it may be repeated."""


class PartOfCluster(exceptions.ResponseError):
    """One node of a cluster was named as if it were all."""


def open_client(url: str, *, timeout_s: float = 2.0, connections: int = 8) -> Client:
    """A client of what a URL names (`redis_url`); it connects at first use.

    Retrying is left to the callers, who know what may be repeated. Raises
    StartError for a URL that says nothing, and for files that cannot be read.
    """
    place = checked_url(url)
    options: dict[str, Any] = {
        **_login(place.login, "password_file"),
        **_tls(place),
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "health_check_interval": 15,
    }
    if place.client_name:
        options["client_name"] = place.client_name
    if place.protocol:
        options["protocol"] = place.protocol
    if place.kind == "cluster":
        return _cluster(place, options, connections)
    if place.kind == "sentinel":
        return _sentinel(place, options, connections)
    where: dict[str, Any]
    if place.kind == "unix":
        where = {"connection_class": UnixDomainSocketConnection, "path": place.path}
    else:
        host, port = place.hosts[0]
        kind = _FreshTls if place.tls else Connection
        where = {"connection_class": kind, "host": host, "port": port}
    pool = BlockingConnectionPool(
        max_connections=connections, timeout=timeout_s, db=place.db, **_ONCE, **where, **options
    )
    return Redis.from_pool(pool)


def checked_url(url: str) -> RedisUrl:
    """What the URL says. Raises StartError, one line without secrets."""
    try:
        return redis_url.parse(url)
    except ValueError as error:
        raise StartError(f"the Redis URL is not usable: {error}") from None


class RunScript:
    """A script on the server that has its keys: by its digest, or once more by its source.

    Unlike redis-py's own it never waits for the other nodes of a cluster.
    """

    def __init__(self, client: Client, source: str) -> None:
        self._client: Any = client
        self._source = source
        # EVALSHA addresses scripts by SHA-1; no security rests on it.
        self._sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    async def __call__(self, keys: Sequence[str], args: Sequence[str | bytes | int] = ()) -> Any:
        """What it answers. Raises what redis-py raises."""
        try:
            return await self._client.evalsha(self._sha, len(keys), *keys, *args)
        except exceptions.NoScriptError:
            return await self._client.eval(self._source, len(keys), *keys, *args)


class FilePassword(CredentialProvider):
    """A password that is read again when its file changes; each new connection asks for it."""

    def __init__(self, login: Login, option: str) -> None:
        """Reads at once. Raises StartError."""
        path = login.password_file
        assert path is not None
        self._username = login.username

        def read() -> str:
            try:
                password = read_bytes(option, path).decode().strip("\r\n")
            except UnicodeDecodeError:
                raise StartError(f"{option}: {path}: not UTF-8") from None
            if not password or "\n" in password:
                raise StartError(f"{option}: {path}: not one line")
            return password

        self._password = Reloading((path,), read)

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Those of now."""
        password = self._password.current()
        return (self._username, password) if self._username else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """Those of now."""
        return self.get_credentials()


def start_error(url: str, error: Exception) -> StartError:
    """One clear line on why Redis at `url` cannot be used."""
    if isinstance(error, TooFewReplicas):
        why = f"has too few replicas: {error}"
    elif isinstance(error, exceptions.MovedError | PartOfCluster):
        why = "is a node of a cluster: write redis+cluster://"
    elif "Cluster mode is not enabled" in str(error):
        why = "is no cluster: write redis://"
    elif login_refused(error) or isinstance(error, exceptions.NoPermissionError):
        why = f"refused the login or a command: {error}"
    elif isinstance(error, exceptions.ResponseError) and is_away(error):
        why = f"takes no writes for now: {kind_of(error)} {error}"
    elif is_away(error):
        why = f"does not answer: {error}"
    else:
        why = f"refused what Paceline needs (Redis 6.2 or newer, or Valkey): {error}"
    return StartError(" ".join(f"Redis at {redis_url.shown(url)} {why}".split()))


def is_away(error: object) -> bool:
    """Whether waiting may help: the server is away, or refuses for a while."""
    if type(error) is RuntimeError:
        return _UVLOOP_CLOSED in str(error)
    if type(error) is exceptions.ResponseError:
        return _FOR_NOW.search(str(error)) is not None
    return isinstance(error, AWAY) and not login_refused(error)


def kind_of(error: Exception) -> str:
    """In a word what is wrong: the server's code where it is there and refuses for a while."""
    code = getattr(error, "status_code", None) or ""
    if type(error) is exceptions.ResponseError and (found := _FOR_NOW.search(str(error))):
        code = found[1]
    return code if code not in ("", "ERR") and is_away(error) else type(error).__name__


def login_refused(error: object) -> bool:
    """Whether the server did not let us in, or not do that."""
    # redis-py wraps what happens while it connects in its plain ConnectionError.
    cause = error.__cause__ if isinstance(error, BaseException) else None
    return isinstance(error, _REFUSED_LOGIN) or isinstance(cause, _REFUSED_LOGIN)


class _Fresh:
    """Reads its certificates for every connection, so that renewed ones count."""

    def _connection_arguments(self) -> Any:
        self.ssl_context.context = None  # type: ignore[attr-defined]
        return super()._connection_arguments()  # type: ignore[misc]


class _FreshTls(_Fresh, SSLConnection):
    pass


class _FreshSentinelTls(_Fresh, SentinelManagedSSLConnection):
    pass


class _SentinelRedis(Redis):
    """The master of a service; closes what asks for it, too."""

    asked: Sentinel

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close every connection."""
        await super().aclose(close_connection_pool)
        await self.asked.aclose()


def _login(login: Login, option: str) -> dict[str, Any]:
    if login.password_file is not None:
        return {"credential_provider": FilePassword(login, option)}
    named = {"username": login.username, "password": login.password}
    return {name: value for name, value in named.items() if value}


def _tls(place: RedisUrl) -> dict[str, Any]:
    if place.tls is None:
        return {}
    for option, path in place.tls.files.items():
        read_bytes(option, path)
    files = {option: str(path) for option, path in place.tls.files.items()}
    return {
        **files,
        "ssl_cert_reqs": "required" if place.tls.verify else "none",
        "ssl_check_hostname": place.tls.check_hostname and place.tls.verify,
    }


def _cluster(place: RedisUrl, options: dict[str, Any], connections: int) -> RedisCluster:
    made = RedisCluster.at(
        place.hosts, max_connections=2 * connections + 4, ssl=bool(place.tls), **options
    )
    if place.tls:
        made.connect_by(_FreshTls)
    return made


def _sentinel(place: RedisUrl, options: dict[str, Any], connections: int) -> Redis:
    own = _login(place.sentinel_login, "sentinel_password_file")
    shared = {name: options[name] for name in ("socket_timeout", "socket_connect_timeout")}
    manager = Sentinel(  # type: ignore[no-untyped-call]
        place.hosts,
        sentinel_kwargs={**_ONCE, **shared, **own, **_tls(place), "ssl": bool(place.tls)},
    )
    kind = _FreshSentinelTls if place.tls else SentinelManagedConnection
    pool = SentinelConnectionPool(  # type: ignore[no-untyped-call]
        place.service,
        manager,
        connection_class=kind,
        db=place.db,
        max_connections=4 * connections,
        **_ONCE,
        **options,
    )
    client = cast(_SentinelRedis, _SentinelRedis.from_pool(pool))
    client.asked = manager
    return client
