"""The proxy that the faults on wires are made with does what it says, and nothing else."""

import socket
from collections.abc import Iterator

import pytest

from testkit.chaos.proxy import Network, Proxy

Wire = tuple[Proxy, socket.socket]
"""A proxy, and the listener behind it."""


@pytest.fixture
def wire() -> Iterator[Wire]:
    with Network() as network, socket.create_server(("127.0.0.1", 0)) as behind:
        behind.settimeout(30)
        host, port = behind.getsockname()
        yield network.proxy(lambda: f"{host}:{port}"), behind


def joined(wire: Wire) -> tuple[socket.socket, socket.socket]:
    """Both ends of a new connection through the proxy."""
    host, _, port = wire[0].address.rpartition(":")
    near = socket.create_connection((host, int(port)), timeout=30)
    far, _ = wire[1].accept()
    far.settimeout(30)
    return near, far


def heard(end: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += end.recv(count - len(data))
    return data


def test_a_cut_resets_both_sides(wire: Wire):
    near, far = joined(wire)
    near.sendall(b"x")
    assert heard(far, 1) == b"x"
    assert wire[0].cut() == 1
    for end in (near, far):
        with pytest.raises(ConnectionResetError):
            end.recv(1)


def test_a_half_open_connection_stands_and_swallows_and_stays_so_after_healing(wire: Wire):
    near, far = joined(wire)
    near.sendall(b"x")
    assert heard(far, 1) == b"x"
    wire[0].half_open()
    near.sendall(b"nobody hears this")
    wire[0].heal()
    fresh, beyond = joined(wire)
    fresh.sendall(b"but this")
    assert heard(beyond, 8) == b"but this"
    far.settimeout(0.2)
    with pytest.raises(TimeoutError):
        far.recv(1)
