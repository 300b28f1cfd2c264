"""Redis over TLS with a client certificate, for an ACL user whose password changes."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator.store import WriterOptions, connect
from services.contract.errors import StartError, StoreError
from services.runtime.embedded_redis import EmbeddedRedis
from services.runtime.ports import free_port
from services.runtime.redis_client import FAULTS, open_client
from testkit.chaos.proxy import Network
from testkit.redis_servers import Server, folder_of_servers
from tests.certificates import Authority
from tests.contracts.backends import KEY, NEW
from tests.contracts.owners import Owner
from tests.contracts.test_redis_tls import demanding
from tests.redis.servers import RIGHTS, Tls, tls_server
from tests.waiting import until


@pytest.fixture
async def plain() -> AsyncIterator[Server]:
    with folder_of_servers() as (_, start):
        server = start()
        await server.ready()
        await server.ask("ACL", "SETUSER", "pace", "on", ">one", *RIGHTS)
        yield server


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    if tls_server() is None:
        pytest.skip("no valkey-server or redis-server that was built with TLS")
    authority = Authority(tmp_path / "authority")
    return Tls(authority.issue("server"), authority.issue("client", "pace"))


async def test_a_password_that_changes_is_only_a_pause(plain, tmp_path):
    """Also where the server has the new one before the file does."""
    secret = tmp_path / "secret"
    secret.write_text("one\n")
    store = await connect(f"redis://pace@127.0.0.1:{plain.port}?password_file={secret}")
    owner = await Owner.create(store, 1)
    for number, password in enumerate(("two", "three"), 2):
        await plain.ask("ACL", "SETUSER", "pace", "resetpass", f">{password}")
        await plain.ask("CLIENT", "KILL", "USER", "pace")
        write = owner.write(number)
        await asyncio.sleep(0.2)
        assert not write.done()
        secret.write_text(password)
        assert await write == number
    await store.close()


async def test_a_password_that_never_comes_fails_once_patience_ends(plain, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("one")
    url = f"redis://pace@127.0.0.1:{plain.port}?password_file={secret}"
    store = await connect(url, writer_options=WriterOptions(patience_s=0.5))
    owner = await Owner.create(store, 1)
    await plain.ask("ACL", "SETUSER", "pace", "resetpass", ">two")
    await plain.ask("CLIENT", "KILL", "USER", "pace")
    with pytest.raises(StoreError) as told:
        await owner.write(2)
    assert "one" not in str(told.value)
    await store.close()


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "cannot read"), ("", "not one line"), ("a\nb", "not one line"), (b"\xff", "not UTF-8")],
)
async def test_a_password_file_that_says_nothing_is_one_clear_line(tmp_path, content, told):
    secret = tmp_path / "secret"
    if content is not None:
        secret.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(StartError, match=f"^password_file: .*{told}"):
        await connect(f"redis://127.0.0.1:1?password_file={secret}")


async def test_certificates_that_cannot_be_read_are_one_clear_line():
    with pytest.raises(StartError, match="ssl_ca_certs: cannot read /nowhere/ca"):
        await connect("rediss://127.0.0.1:1?ssl_ca_certs=/nowhere/ca")


async def test_a_renewed_client_certificate_counts_for_the_next_connection(tmp_path):
    ours, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    old, new = others.issue("client", "pace"), ours.issue("client", "pace")
    with EmbeddedRedis() as redis, Network() as network:
        behind = redis.url.replace("unix://", "unix:")
        port = network.proxy(lambda: behind, tls=demanding(ours)).address.rpartition(":")[2]
        shown = f"ssl_certfile={old.cert}&ssl_keyfile={old.key}"
        client = open_client(f"rediss://localhost:{port}?ssl_ca_certs={ours.path}&{shown}")
        with pytest.raises(FAULTS):
            await client.ping()
        shutil.copy(new.cert, old.cert)
        shutil.copy(new.key, old.key)
        assert await client.ping()
        await client.aclose()


async def test_a_session_over_tls_with_a_certificate_a_user_and_a_password(tls, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("one")
    with folder_of_servers() as (_, start):
        server = start(*tls.told, program=tls_server(), options=tls.asking)
        await server.ready()
        await server.ask("ACL", "SETUSER", "pace", "on", ">one", *RIGHTS)
        at = f"rediss://pace@127.0.0.1:{server.port}?password_file={secret}"
        store = await connect(f"{at}&{tls.options}")
        owner = await Owner.create(store, 1)
        await server.ask("ACL", "SETUSER", "pace", "resetpass", ">two")
        secret.write_text("two")
        await server.ask("CLIENT", "KILL", "USER", "pace")
        assert await owner.write(2) == 2
        with pytest.raises(StartError, match="does not answer"):
            await connect(f"{at}&ssl_ca_certs={tls.client.ca}")
        await store.close()


async def test_a_cluster_over_tls(tls):
    with folder_of_servers() as (_, start):
        node = start(
            *tls.told,
            "cluster-enabled yes",
            f"cluster-port {free_port()}",
            program=tls_server(),
            options=tls.asking,
        )
        await node.ready()
        await node.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)

        async def serves() -> bool:
            return "cluster_state:ok" in await node.ask("CLUSTER", "INFO")

        await until(serves)
        store = await connect(f"rediss+cluster://127.0.0.1:{node.port}?{tls.options}")
        assert (await store.create(KEY, NEW)).created
        await store.close()


async def test_sentinels_over_tls(tls):
    with folder_of_servers() as (_, start):
        master = start(*tls.told, program=tls_server(), options=tls.asking)
        await master.ready()
        sentinel = start(
            *tls.told,
            f"sentinel monitor pace 127.0.0.1 {master.port} 1",
            program=tls_server(),
            options=tls.asking,
            sentinel=True,
        )
        await sentinel.ready()
        url = f"rediss+sentinel://127.0.0.1:{sentinel.port}/pace?{tls.options}"
        store = await connect(url)
        assert (await store.create(KEY, NEW)).created
        await store.close()
