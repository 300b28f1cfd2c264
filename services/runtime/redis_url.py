"""The URLs by which Redis is named, read strictly.

    redis://[USER:PASSWORD@]HOST[:PORT][/DB]              one server; rediss:// over TLS
    redis+sentinel://[…@]HOST[:PORT],HOST[:PORT]/SERVICE[/DB]  whom its sentinels name
    redis+cluster://[…@]HOST[:PORT],HOST[:PORT]           a cluster, found by any of its nodes
    unix:///PATH                                          one server on this machine

`rediss+sentinel://` and `rediss+cluster://` are the same over TLS. No message quotes what
may be a secret: it names the part of the URL that is wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

Kind = Literal["server", "unix", "sentinel", "cluster"]

LONGEST = 4096
MOST_HOSTS = 64
MOST_DBS = 1 << 16
_PORTS = {"server": 6379, "cluster": 6379, "sentinel": 26379}
_SCHEMES: dict[str, tuple[Kind, bool]] = {
    "redis": ("server", False),
    "rediss": ("server", True),
    "unix": ("unix", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
_URL = re.compile(r"(?P<scheme>[a-z+]+)://(?P<place>[^/?#]*)(?P<path>[^?#]*)(?:\?(?P<options>.*))?")
_HOST = re.compile(
    r"(?:(?P<name>[\w.\-]{1,253})|\[(?P<v6>[0-9A-Fa-f:.%]{2,64})\])(?::(?P<port>.*))?"
)
_SERVICE = re.compile(r"[\w.\-:]{1,128}", re.ASCII)
_SHOWN = re.compile(r"[\w+]{1,32}", re.ASCII)
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CHOICES: dict[str, dict[str, Any]] = {
    "ssl_cert_reqs": {"required": True, "none": False},
    "ssl_check_hostname": {"true": True, "yes": True, "1": True}
    | {"false": False, "no": False, "0": False},
    "protocol": {"2": 2, "3": 3},
}
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_SENTINEL = ("sentinel_username", "sentinel_password", "sentinel_password_file")
_LOGIN = ("username", "password", "password_file")
_OPTIONS = ("db", "client_name", "protocol", *_LOGIN, *_TLS, *_SENTINEL)


@dataclass(frozen=True, slots=True)
class Login:
    """Who we are to a server. The password is in one place at most."""

    username: str = ""
    password: str = field(default="", repr=False)
    password_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Tls:
    """`ca` None: the system's own; `verify` False: any certificate will do."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    verify: bool = True
    check_hostname: bool = True

    @property
    def files(self) -> dict[str, Path]:
        """What must be there, by the option that names it."""
        named = {"ssl_ca_certs": self.ca, "ssl_certfile": self.cert, "ssl_keyfile": self.key}
        return {name: path for name, path in named.items() if path is not None}


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """What a URL says. `path` is that of a socket; `tls` None: plaintext."""

    scheme: str
    kind: Kind
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    service: str = ""
    db: int = 0
    login: Login = Login()
    sentinel_login: Login = Login()
    tls: Tls | None = None
    client_name: str = ""
    protocol: int | None = None

    @property
    def shown(self) -> str:
        """Without user, password and options, fit for a message."""
        if self.kind == "unix":
            return f"unix://{self.path}"
        hosts = ",".join(f"[{h}]:{p}" if ":" in h else f"{h}:{p}" for h, p in self.hosts)
        service = f"/{self.service}" if self.service else ""
        return f"{self.scheme}://{hosts}{service}{f'/{self.db}' if self.db else ''}"


def parse(url: str) -> RedisUrl:
    """What the URL says. Raises ValueError that names the part which is wrong, in one line."""
    if len(url) > LONGEST:
        raise ValueError(f"longer than {LONGEST} characters")
    if any(not char.isprintable() or char == " " for char in url):
        raise ValueError("spaces and control characters must be percent-encoded")
    parts = _URL.fullmatch(url)
    if parts is None or parts["scheme"] not in _SCHEMES:
        raise ValueError(f"its scheme must be one of {', '.join(f'{one}://' for one in _SCHEMES)}")
    kind, tls = _SCHEMES[parts["scheme"]]
    login, _, hosts = parts["place"].rpartition("@")
    options = _read_options(parts["options"] or "")
    if "@" in (parts["options"] or "") or ("@" in parts["path"] and kind != "unix"):
        raise ValueError("'/', '?' and '@' in a user, a password or a file must be percent-encoded")
    _check_options(kind, tls, options)
    path, service, db = _read_path(kind, parts["path"], options.get("db"))
    return RedisUrl(
        scheme=parts["scheme"],
        kind=kind,
        hosts=_read_hosts(kind, hosts),
        path=path,
        service=service,
        db=db,
        login=_read_login(login, options),
        sentinel_login=_read_login("", options, "sentinel_"),
        tls=_read_tls(options) if tls else None,
        client_name=options.get("client_name", ""),
        protocol=_chosen(options, "protocol", None),
    )


def shown(url: str) -> str:
    """The URL without user, password and options, fit for a message."""
    try:
        return parse(url).shown
    except ValueError:
        return "(malformed)"


def _decoded(part: str, text: str) -> str:
    try:
        if not _ESCAPE.search(text):
            return unquote(text, errors="strict")
    except UnicodeDecodeError:
        pass
    raise ValueError(f"{part}: not percent-encoded as it should be")


def _read_options(text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in filter(None, text.split("&")):
        name, equals, value = pair.partition("=")
        if name not in _OPTIONS:
            told = f" {name!r}" if _SHOWN.fullmatch(name) and equals else ""
            raise ValueError(f"option{told}: unknown; known are {', '.join(_OPTIONS)}")
        if name in options:
            raise ValueError(f"option {name!r}: given twice")
        if not value:
            raise ValueError(f"option {name!r}: empty")
        options[name] = _decoded(f"option {name!r}", value)
    return options


def _check_options(kind: Kind, tls: bool, options: dict[str, str]) -> None:
    for name in options:
        if name in _TLS and not tls:
            raise ValueError(f"option {name!r}: only a URL that begins with rediss uses TLS")
        if name in _SENTINEL and kind != "sentinel":
            raise ValueError(f"option {name!r}: only redis+sentinel:// has sentinels")


def _read_hosts(kind: Kind, text: str) -> tuple[tuple[str, int], ...]:
    if kind == "unix":
        if text:
            raise ValueError("host: a socket has none; write unix:///PATH")
        return ()
    hosts = tuple(_read_host(one, _PORTS[kind]) for one in text.split(","))
    if kind == "server" and len(hosts) > 1:
        raise ValueError("host: one server has one; write redis+sentinel:// or redis+cluster://")
    if len(hosts) > MOST_HOSTS:
        raise ValueError(f"host: more than {MOST_HOSTS} of them")
    return hosts


def _read_host(text: str, default: int) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    if found is None:
        raise ValueError("host: no HOST:PORT, or [IPv6]:PORT")
    port = found["port"]
    if port is None:
        return found["name"] or found["v6"], default
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise ValueError("port: no number from 1 to 65535")
    return found["name"] or found["v6"], int(port)


def _read_path(kind: Kind, path: str, db: str | None) -> tuple[str, str, int]:
    """The socket, the service and the number of the database."""
    if kind == "unix":
        if len(path) < 2:
            raise ValueError("path: a socket is needed, as in unix:///run/redis.sock")
        return _decoded("path", path), "", _read_db(db or "0")
    words = path.strip("/").split("/") if path.strip("/") else []
    service = ""
    if kind == "sentinel":
        service = _decoded("service", words.pop(0)) if words else ""
        if not _SERVICE.fullmatch(service):
            raise ValueError("service: the name that its sentinels know is needed, …/SERVICE")
    if len(words) > 1 or (words and db is not None):
        raise ValueError("path: only the number of a database, once")
    number = _read_db(words[0] if words else db or "0")
    if kind == "cluster" and number:
        raise ValueError("db: a cluster has 0 alone")
    return "", service, number


def _read_db(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) >= MOST_DBS:
        raise ValueError(f"db: no number below {MOST_DBS}")
    return int(text)


def _read_login(text: str, options: dict[str, str], prefix: str = "") -> Login:
    """From before the host (`text`), or from the options whose names begin with `prefix`."""
    user, _, password = text.partition(":")
    if (user and "username" in options) or (password and "password" in options):
        raise ValueError("user and password: before the host or as options, not both")
    file = options.get(f"{prefix}password_file")
    login = Login(
        _decoded("user", user) or options.get(f"{prefix}username", ""),
        _decoded("password", password) or options.get(f"{prefix}password", ""),
        Path(file) if file is not None else None,
    )
    if login.password and file is not None:
        raise ValueError(f"option '{prefix}password_file': the password is given, too")
    if login.username and not login.password and file is None:
        raise ValueError(f"{prefix}username: without a password, or a {prefix}password_file")
    return login


def _read_tls(options: dict[str, str]) -> Tls:
    ca, cert, key = (Path(options[name]) if name in options else None for name in _TLS[:3])
    if (cert is None) != (key is None):
        raise ValueError("ssl_certfile and ssl_keyfile: the one needs the other")
    verify = _chosen(options, "ssl_cert_reqs", True)
    return Tls(ca, cert, key, verify, _chosen(options, "ssl_check_hostname", True))


def _chosen(options: dict[str, str], name: str, default: Any) -> Any:
    choices = _CHOICES[name]
    if name not in options:
        return default
    if (chosen := options[name].lower()) not in choices:
        raise ValueError(f"option {name!r}: one of {', '.join(choices)}")
    return choices[chosen]
