"""The proxy that the faults on wires are made with does what it says, and nothing else."""

import asyncio
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


def test_bytes_pass_both_ways_in_their_order(wire: Wire):
    near, far = joined(wire)
    long = bytes(range(256)) * 4000
    near.sendall(b"to the far end")
    assert heard(far, 14) == b"to the far end"
    wire[0].delay(0.2)
    far.sendall(long[:500_000])
    wire[0].delay(0.0)
    far.sendall(long[500_000:])
    assert heard(near, len(long)) == long


def test_an_end_of_one_side_is_the_end_of_the_other_after_all_that_was_said(wire: Wire):
    near, far = joined(wire)
    far.sendall(b"last words")
    far.close()
    assert heard(near, 10) == b"last words"
    assert near.recv(1) == b""


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


def test_where_nobody_listens_a_connection_ends_at_once():
    with Network() as network:
        host, _, port = network.proxy(lambda: "").address.rpartition(":")
        # The reset may come before or after the connect has returned.
        with pytest.raises(ConnectionResetError):
            socket.create_connection((host, int(port)), timeout=30).recv(1)


async def test_a_proxy_may_be_told_from_any_event_loop(wire: Wire):
    await asyncio.to_thread(joined, wire)
    assert wire[0].cut() == 1
