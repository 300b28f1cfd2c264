"""TLS on both ends of a connection, from PEM files that may change while in use.

A server reads its files at every handshake, a client at every connection. Open
connections stay open: a certificate is checked when a connection begins.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import grpc

from services.contract.errors import StartError
from services.runtime.atomic_file import read_bytes
from services.runtime.serving.reloading import Reloading

_CHANGING = "{}_cert, _key and _ca change while they are read"

_Contents = tuple[bytes | None, bytes | None, bytes | None]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files.

    With `ca`, a server demands a client certificate signed by it, and a client
    trusts only servers signed by it. `settings` begins the names of the settings
    that the paths are from, for messages.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    settings: str = "tls"

    @property
    def paths(self) -> tuple[Path, ...]:
        """Those that are given."""
        return tuple(path for path in (self.cert, self.key, self.ca) if path is not None)

    def check(self) -> None:
        """Raise StartError, naming the setting, for files that cannot be used."""
        if (self.cert is None) != (self.key is None):
            raise StartError(f"{self.settings}_cert and {self.settings}_key: give both or none")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self.ca is not None:
            _check_ca(context, f"{self.settings}_ca", self.ca)
        if self.cert is not None and self.key is not None:
            _check_pair(context, self.settings, self.cert, self.key)


def tls_server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Credentials to listen with. A `ca` given later or taken away needs a restart."""
    if files.cert is None or files.key is None:
        raise StartError("tls_cert and tls_key: a server needs both")
    source = _Certificates(files)
    demand = files.ca is not None
    # gRPC takes None for "no change"; its stubs do not know.
    fetch = cast("Callable[[], grpc.ServerCertificateConfiguration]", source.fetch)
    return grpc.dynamic_ssl_server_credentials(source.first, fetch, demand)


def tls_contexts(files: TlsFiles) -> Callable[[], ssl.SSLContext]:
    """The same for a server of Python's own, which asks at every connection."""
    if files.cert is None or files.key is None:
        raise StartError("tls_cert and tls_key: a server needs both")
    return Reloading(files.paths, partial(_context, files)).current


def channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """Credentials to connect with, from the files as they are now; StartError."""
    cert, key, ca = _read_usable(files)
    return grpc.ssl_channel_credentials(ca, key, cert)


class _Certificates:
    """Hands gRPC a server's certificates, and new ones when the files have changed."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._newest = Reloading(files.paths, self._load)
        self.first = self._given = self._newest.current()

    def fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC at each handshake, in a thread of its own; None = no change."""
        newest = self._newest.current()
        if newest is self._given:
            return None
        self._given = newest
        return newest

    def _load(self) -> grpc.ServerCertificateConfiguration:
        cert, key, ca = _read_usable(self._files)
        assert cert is not None
        assert key is not None
        return grpc.ssl_server_certificate_configuration([(key, cert)], ca)


def _context(files: TlsFiles) -> ssl.SSLContext:
    _read_usable(files)
    assert files.cert is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files.cert, files.key, password="")
        if files.ca is not None:
            context.load_verify_locations(files.ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (ssl.SSLError, OSError, ValueError) as error:
        raise StartError(_CHANGING.format(files.settings)) from error
    return context


def _read_usable(files: TlsFiles) -> _Contents:
    """What the files hold, none of it half written; StartError."""
    before = _read(files)
    files.check()
    if _read(files) != before:
        raise StartError(_CHANGING.format(files.settings))
    return before


def _read(files: TlsFiles) -> _Contents:
    given = {"cert": files.cert, "key": files.key, "ca": files.ca}
    cert, key, ca = (
        None if path is None else read_bytes(f"{files.settings}_{name}", path)
        for name, path in given.items()
    )
    return cert, key, ca


def _check_ca(context: ssl.SSLContext, setting: str, path: Path) -> None:
    read_bytes(setting, path)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError) as error:
        raise StartError(f"{setting}: {path} holds no certificate ({_why(error)})") from error


def _check_pair(context: ssl.SSLContext, settings: str, cert: Path, key: Path) -> None:
    read_bytes(f"{settings}_cert", cert)
    read_bytes(f"{settings}_key", key)
    try:
        # With a password that is wrong, a locked key is an error and asks nobody.
        context.load_cert_chain(cert, key, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise StartError(
            f"{settings}_cert and {settings}_key: {cert} and {key} are no certificate "
            f"and its unlocked key ({_why(error)})"
        ) from error


def _why(error: Exception) -> str:
    """OpenSSL's short reason, which never quotes a file."""
    return str(getattr(error, "reason", None) or type(error).__name__).lower().replace("_", " ")
