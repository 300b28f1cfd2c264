"""Where a server listens: every address that its host's name stands for, or none.

gRPC is content with one of them: a client of `localhost` then reaches us by 127.0.0.1, and whoever
else took the port by ::1.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Any

import grpc

from services.contract.errors import StartError
from services.runtime.serving.options import bound, host_port

_NOT_OF_THIS_MACHINE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def listen(
    server: grpc.aio.Server,
    address: str,
    credentials: grpc.ServerCredentials | None = None,
    setting: str = "address",
) -> str:
    """Listen on host:port or unix:path; the address, with the port that it got.

    `credentials` None: plaintext. Raises StartError, which names the setting, where one of its
    addresses is taken.
    """
    host, _, port = address.rpartition(":")
    if not _is_name(address, host):
        return bound(address, _listen(server, address, credentials, address, setting))
    got = int(port)
    for one in _addresses(host, address, setting):
        got = _listen(server, host_port(one, got), credentials, address, setting)
    return bound(address, got)


def _is_name(address: str, host: str) -> bool:
    """Whether a host is to be looked up."""
    if address.startswith("unix:"):
        return False
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return True
    return False


def _addresses(host: str, address: str, setting: str) -> list[str]:
    """Those of this machine that a name stands for."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        places = [str(place[0]) for family, _, _, _, place in found if _is_here(family, place)]
    except OSError as error:
        raise StartError(f"{setting}: cannot listen on {address}: {error.strerror}") from error
    if not places:
        raise StartError(f"{setting}: cannot listen on {address}: no address of this machine")
    return list(dict.fromkeys(places))


def _is_here(family: int, place: Any) -> bool:
    """Whether this machine has an address: many know ::1 by name alone."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.bind(place)
    except OSError as error:
        if error.errno in _NOT_OF_THIS_MACHINE:
            return False
        raise
    return True


def _listen(
    server: grpc.aio.Server,
    place: str,
    credentials: grpc.ServerCredentials | None,
    address: str,
    setting: str,
) -> int:
    try:
        if credentials is None:
            return server.add_insecure_port(place)
        return server.add_secure_port(place, credentials)
    except RuntimeError as error:
        which = "" if place == address else f": not at {place}"
        raise StartError(f"{setting}: cannot listen on {address}{which}") from error
