"""One way to reach Redis: the URL, the client's options, and what its errors mean."""

from __future__ import annotations

from urllib.parse import urlsplit

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from services.contract.errors import StartError

DEFAULT_PREFIX = "paceline:"

# The server cannot serve for now: a restart, a failover, a network fault. Try again.
AWAY = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    OSError,
)
# What a call may raise at all. uvloop adds a bare RuntimeError: a transport that it has closed
# is not known as lost to redis-py until the next command is written to it.
FAULTS = (exceptions.RedisError, OSError, RuntimeError)
_UVLOOP_CLOSED = "the handler is closed"
# Trying again will not help, although redis-py counts these as connection errors.
_REFUSED_LOGIN = (
    exceptions.AuthenticationError,
    exceptions.AuthorizationError,
    exceptions.NoPermissionError,
)


def open_client(url: str, *, timeout_s: float = 2.0, connections: int = 8) -> Redis:
    """A client of `redis://`, `rediss://` or `unix://`; it connects at first use.

    Retrying is left to the callers, who know what may be repeated. Raises
    StartError for a URL that says nothing.
    """
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=connections,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            health_check_interval=15,
            retry=Retry(NoBackoff(), 0),
        )
    except (ValueError, TypeError) as error:
        raise StartError(
            f"Redis URL {safe_url(url)!r} is not usable ({error}); "
            "write redis://host:port, rediss://host:port or unix:///path"
        ) from error
    return Redis.from_pool(pool)


def safe_url(url: str) -> str:
    """The URL without user, password and options, fit for a message."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "(malformed)"
    return f"{parts.scheme}://{host}{parts.path}"


def start_error(url: str, error: Exception) -> StartError:
    """One clear line on why Redis at `url` cannot be used."""
    if _refused_login(error):
        why = f"refused the login or a command: {error}"
    elif is_away(error):
        why = f"does not answer: {error}"
    else:
        why = f"refused what Paceline needs (Redis 6.2 or newer, or Valkey): {error}"
    return StartError(" ".join(f"Redis at {safe_url(url)} {why}".split()))


def is_away(error: object) -> bool:
    """Whether waiting may help: the server is away and did not refuse."""
    if type(error) is RuntimeError:
        return _UVLOOP_CLOSED in str(error)
    return isinstance(error, AWAY) and not _refused_login(error)


def _refused_login(error: BaseException) -> bool:
    # redis-py wraps what happens while it connects in its plain ConnectionError.
    return isinstance(error, _REFUSED_LOGIN) or isinstance(error.__cause__, _REFUSED_LOGIN)
