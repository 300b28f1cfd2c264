"""A server listens on every address that its host's name stands for, or does not start."""

import socket

import grpc
import pytest

from services.contract.errors import StartError
from services.runtime.serving import GrpcServer, ServingOptions
from services.runtime.serving.health import Health

BOTH = ("127.0.0.1", "::1")


@pytest.fixture(autouse=True)
def _two_addresses(monkeypatch):
    """What `localhost` stands for on most machines."""
    kinds = dict(zip(BOTH, (socket.AF_INET, socket.AF_INET6), strict=True))
    found = [(kinds[one], socket.SOCK_STREAM, 6, "", (one, 0)) for one in BOTH]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


def has(family, address):
    try:
        socket.create_server((address, 0), family=family).close()
    except OSError:
        return False
    return True


def reached(address, port):
    # Not `create_connection`, which looks up.
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as made:
        return made.connect_ex((address, port)) == 0


needs_both = pytest.mark.skipif(not has(socket.AF_INET6, "::1"), reason="this machine has no ::1")


@needs_both
async def test_a_name_is_listened_on_at_each_of_its_addresses():
    server = GrpcServer(ServingOptions(address="localhost:0"))
    address = await server.start()
    host, _, port = address.rpartition(":")
    assert host == "localhost"
    assert all(reached(one, int(port)) for one in BOTH)
    await server.stop()


@needs_both
@pytest.mark.parametrize("taken", BOTH)
async def test_a_name_with_an_address_that_is_taken_is_refused_in_one_sentence(taken):
    family = socket.AF_INET6 if ":" in taken else socket.AF_INET
    with socket.create_server((taken, 0), family=family) as other:
        address = f"localhost:{other.getsockname()[1]}"
        with pytest.raises(StartError, match=rf"^address: cannot listen on {address}: not at .*$"):
            await GrpcServer(ServingOptions(address=address)).start()
        with pytest.raises(StartError, match=r"^health_port: cannot listen on"):
            await Health(ServingOptions(health_address=address)).open()


async def test_an_address_that_this_machine_lacks_is_left_out(monkeypatch):
    found = [(socket.AF_INET, 1, 6, "", (one, 0)) for one in ("192.0.2.1", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    server = GrpcServer(ServingOptions(address="somewhere:0", insecure=True))
    address = await server.start()
    assert reached("127.0.0.1", int(address.rpartition(":")[2]))
    await server.stop()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found[:1])
    with pytest.raises(StartError, match="no address of this machine"):
        await GrpcServer(ServingOptions(address="somewhere:0", insecure=True)).start()


async def test_a_name_that_nobody_knows_is_refused(monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    server = GrpcServer(ServingOptions(address="nowhere:0", insecure=True))
    with pytest.raises(StartError, match="nowhere:0: Name or service not known"):
        await server.start()
    assert isinstance(server.grpc, grpc.aio.Server)
