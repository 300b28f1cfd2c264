"""A local cluster in real processes on development certificates: settings reach every process."""

import asyncio
import signal
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from paceline import Client

from services.cluster.certificates import SERVER_NAME, make_certificates
from services.runtime.serving import TlsFiles, open_channel
from tests.processes.conftest import PROMPT, start_up

pytestmark = pytest.mark.processes


async def code_of(address: str, tls: TlsFiles | None) -> grpc.StatusCode:
    """What who connects so gets from the health service."""
    async with open_channel(address, tls) as channel:
        call = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=60
        )
        return await call.code()


def test_variables_alone_put_every_process_behind_mutual_tls(models, tmp_path, monkeypatch):
    certs, token = tmp_path / "certs", tmp_path / "token"
    make_certificates(certs)
    token.write_text("a-secret-of-this-cluster")
    variables = {
        "TLS_CERT": certs / "server.pem", "TLS_KEY": certs / "server.key",
        "TLS_CA": certs / "ca.pem", "LINK_CERT": certs / "orchestrator.pem",
        "LINK_KEY": certs / "orchestrator.key", "LINK_CA": certs / "ca.pem",
        "LINK_SERVER_NAME": SERVER_NAME, "CLUSTER_TOKEN_FILE": token, "HEALTH_PORT": 0,
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(f"PACELINE_{name}", str(value))
    flags = ("--target", str(models / "llama-0"), "--draft", str(models / "llama-3"))
    up = start_up(tmp_path, *flags)
    try:
        asyncio.run(asked(up.address, certs))
    finally:
        up.everything()
        up.process.send_signal(signal.SIGTERM)
        assert up.process.wait(timeout=60) == 0
    assert up.left() == []


async def asked(address: str, certs: Path) -> None:
    ca, cert, key = (certs / name for name in ("ca.pem", "client.pem", "client.key"))
    given = {"ca": ca.read_bytes(), "cert": cert.read_bytes(), "key": key.read_bytes()}
    async with Client(address, **given) as client:
        run = await client.generate(PROMPT, temperature=0.0, max_tokens=16, ignore_eos=True)
        assert len(run.token_ids) == 16
        workers = (await client.server_info()).workers
    own = TlsFiles(cert, key, ca)
    assert len(workers) == 2
    for place in (address, *(worker.address for worker in workers)):
        assert await code_of(place, own) is grpc.StatusCode.OK
        for stranger in (None, TlsFiles(ca=ca)):
            assert await code_of(place, stranger) is grpc.StatusCode.UNAVAILABLE
