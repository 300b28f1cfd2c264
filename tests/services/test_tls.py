"""Who gets past TLS, and that new files count without a restart."""

import logging
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.contract.errors import StartError
from services.runtime.serving import GrpcServer, ServingOptions, TlsFiles, open_channel
from services.runtime.serving.reloading import Reloading
from tests.certificates import Authority, trusting

REFUSED = grpc.StatusCode.UNAVAILABLE
SERVED = grpc.StatusCode.OK
ATTEMPTS = 100


@asynccontextmanager
async def served(tls):
    server = GrpcServer(ServingOptions(address="127.0.0.1:0", tls=tls))
    address = await server.start()
    try:
        yield address
    finally:
        await server.stop()


async def asked(address, tls, server_name=""):
    """What a new connection gets for its first question."""
    async with open_channel(address, tls, server_name) as channel:
        try:
            stub = health_pb2_grpc.HealthStub(channel)
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=60)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return SERVED


@pytest.fixture
def ours(tmp_path):
    return Authority(tmp_path / "ours")


@pytest.fixture
def others(tmp_path):
    return Authority(tmp_path / "others")


def replaced(files, by):
    """What is in each of the files is that of the others."""
    for old, new in zip(files.paths, by.paths, strict=True):
        old.write_bytes(new.read_bytes())


async def test_a_client_with_a_certificate_of_the_ca_is_served_and_nobody_else(ours, others):
    client = ours.issue("client", "client")
    strangers = {
        "plaintext": None,
        "no certificate": TlsFiles(ca=ours.path),
        "an expired one": ours.issue("expired", "client", expired=True),
        "one of another CA": trusting(others.issue("client", "client"), ours),
        "who trusts another CA": trusting(client, others),
    }
    async with served(ours.issue("server")) as address:
        assert await asked(address, client) is SERVED
        codes = {name: await asked(address, files) for name, files in strangers.items()}
        assert codes == dict.fromkeys(strangers, REFUSED)
        assert await asked(address, client) is SERVED


async def test_without_a_ca_a_server_proves_itself_and_asks_for_no_certificate(ours):
    async with served(replace(ours.issue("server"), ca=None)) as address:
        assert await asked(address, TlsFiles(ca=ours.path)) is SERVED
        assert await asked(address, None) is REFUSED


async def test_a_certificate_for_another_name_is_refused_unless_that_name_is_expected(ours):
    async with served(ours.issue("server", "paceline-worker")) as address:
        client = ours.issue("client")
        assert await asked(address, client) is REFUSED
        assert await asked(address, client, "paceline-worker") is SERVED
        assert await asked(address, client, "another-worker") is REFUSED


@pytest.mark.parametrize("expired", [False, True], ids=["no certificate", "an expired one"])
async def test_a_hundred_attempts_are_all_refused_and_no_secret_is_logged(ours, caplog, expired):
    caplog.set_level(logging.DEBUG)
    server = ours.issue("server")
    intruder = ours.issue("old", "client", expired=True) if expired else TlsFiles(ca=ours.path)
    async with served(server) as address:
        codes = [await asked(address, intruder) for _ in range(ATTEMPTS)]
        assert codes == [REFUSED] * ATTEMPTS
        assert await asked(address, ours.issue("client")) is SERVED
    for file in (server.key, intruder.key):
        for line in file.read_text().splitlines() if file else ():
            assert line not in caplog.text


async def test_a_new_ca_and_certificate_count_without_a_restart(ours, others):
    tls = ours.issue("server")
    client, stranger = ours.issue("client", "c"), others.issue("client", "c")
    async with served(tls) as address:
        assert await asked(address, client) is SERVED
        assert await asked(address, stranger) is REFUSED
        replaced(tls, others.issue("server"))
        # The client's own file of the CA has changed with the server's.
        assert await asked(address, stranger) is SERVED
        assert await asked(address, client) is REFUSED


async def test_a_connection_outlives_the_certificate_it_began_with(ours, others):
    tls = ours.issue("server")
    async with served(tls) as address, open_channel(address, ours.issue("c")) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        await stub.Check(health_pb2.HealthCheckRequest())
        replaced(tls, others.issue("server"))
        assert await asked(address, others.issue("c")) is SERVED
        await stub.Check(health_pb2.HealthCheckRequest())


@pytest.mark.parametrize("broken", ["cert", "key", "ca"])
async def test_a_broken_file_leaves_the_old_ones_in_force_and_is_told_once(ours, caplog, broken):
    tls, client = ours.issue("server"), ours.issue("client")
    client = replace(client, ca=ours.folder / "kept.pem")
    client.ca.write_bytes(ours.path.read_bytes())
    file = getattr(tls, broken)
    whole = file.read_bytes()
    async with served(tls) as address:
        file.write_bytes(whole[: len(whole) // 2])
        assert [await asked(address, client) for _ in range(3)] == [SERVED] * 3
        warned = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        assert len(warned) == 1
        assert f"tls_{broken}" in warned[0]
        assert str(file) in warned[0]
        file.write_bytes(whole)
        assert await asked(address, client) is SERVED
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


async def test_a_certificate_that_is_not_for_the_key_is_not_taken(ours, caplog):
    tls, client = ours.issue("server"), ours.issue("client")
    async with served(tls) as address:
        tls.cert.write_bytes(ours.issue("another").cert.read_bytes())
        assert await asked(address, client) is SERVED
    assert "going on with what was read before" in caplog.text


async def test_a_client_uses_the_files_as_they_are_when_it_connects(ours, others):
    client = others.issue("client", "c")
    async with served(ours.issue("server")) as address:
        assert await asked(address, client) is REFUSED
        replaced(client, ours.issue("client", "c"))
        assert await asked(address, client) is SERVED


@pytest.mark.parametrize("spoilt", ["cert", "key", "ca"])
async def test_files_that_are_no_pem_are_named_at_the_start(ours, spoilt):
    tls = ours.issue("server")
    getattr(tls, spoilt).write_text("nothing of the kind")
    with pytest.raises(StartError, match=rf"tls_{spoilt}.*{getattr(tls, spoilt)}"):
        async with served(tls):
            pass
    with pytest.raises(StartError, match=f"link_{spoilt}"):
        replace(tls, settings="link").check()


async def test_a_locked_key_is_refused_and_nobody_is_asked_for_its_password(ours):
    from cryptography.hazmat.primitives import serialization as pem

    tls = ours.issue("server")
    key = pem.load_pem_private_key(tls.key.read_bytes(), None)
    locked = pem.BestAvailableEncryption(b"secret")
    tls.key.write_bytes(
        key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.TraditionalOpenSSL, locked)
    )
    with pytest.raises(StartError, match="unlocked key"):
        async with served(tls):
            pass


def test_files_are_read_again_only_when_they_have_changed(tmp_path):
    file = tmp_path / "file"
    file.write_text("one")
    read = []

    def load():
        read.append(file.read_text())
        return read[-1]

    values = Reloading((file,), load)
    assert [values.current(), values.current()] == ["one", "one"]
    file.write_text("three")
    assert [values.current(), values.current()] == ["three", "three"]
    assert read == ["one", "three"]
