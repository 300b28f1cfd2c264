"""Redis behind TLS with a private CA: all of it is in the URL."""

import ssl

import pytest

from orchestrator.store import connect
from services.contract.errors import StartError
from services.runtime.embedded_redis import EmbeddedRedis
from services.runtime.redis_client import open_client
from testkit.chaos.proxy import Network
from tests.certificates import Authority


def demanding(authority: Authority) -> ssl.SSLContext:
    """A server that wants a client certificate of the same CA."""
    files = authority.issue("redis")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.path)
    context.load_cert_chain(files.cert, files.key)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_a_store_behind_mutual_tls_is_reached_by_its_url_alone(tmp_path):
    ours, others = Authority(tmp_path / "ours"), Authority(tmp_path / "others")
    client = ours.issue("client", "orchestrator")
    shown = f"ssl_certfile={client.cert}&ssl_keyfile={client.key}"
    with EmbeddedRedis() as redis, Network() as network:
        behind = redis.url.replace("unix://", "unix:")
        port = network.proxy(lambda: behind, tls=demanding(ours)).address.rpartition(":")[2]
        url, trusts = f"rediss://localhost:{port}", f"ssl_ca_certs={ours.path}"
        await (await connect(f"{url}?{trusts}&{shown}")).close()
        reached = open_client(f"{url}?{trusts}&{shown}", timeout_s=60)
        assert await reached.ping()
        await reached.aclose()
        for wrong in (f"?ssl_ca_certs={others.path}&{shown}", f"?{shown}", f"?{trusts}"):
            with pytest.raises(StartError, match=rf"^Redis at rediss://localhost:{port}") as told:
                await connect(url + wrong)
            assert str(client.key) not in str(told.value)
