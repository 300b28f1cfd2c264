"""Addresses of servers, as a caller writes them."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

_SCHEMES = ("dns:", "ipv4:", "ipv6:")
_LOCAL_SCHEMES = ("unix:", "unix-abstract:")


def parse_addresses(address: str | Sequence[str]) -> tuple[str, ...]:
    """One address, several joined by commas, or a sequence of either; each once.

    An address is what gRPC dials: host:port, `dns:///name:port`, `unix:path`.
    ValueError when one is empty or there is none.
    """
    given = [address] if isinstance(address, str) else address
    addresses = [part.strip() for text in given for part in text.split(",")]
    if not addresses or not all(addresses):
        raise ValueError("address: expected HOST:PORT, or several of them")
    return tuple(dict.fromkeys(addresses))


def is_loopback(address: str) -> bool:
    """Whether the address can be reached from this machine only."""
    if address.startswith(_LOCAL_SCHEMES):
        return True
    host = _host(address)
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host(address: str) -> str:
    for scheme in _SCHEMES:
        # The part before the last slash names a resolver: `dns://8.8.8.8/name:port`.
        address = address.removeprefix(scheme)
    endpoint = address.rpartition("/")[2]
    return endpoint.rpartition(":")[0].strip("[]")
