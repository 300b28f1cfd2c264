"""The gateway speaks no TLS to an engine of gRPC, as the page says.

When a newer smg fails this, its way may be secured, and the page changes.
"""

import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.cluster.certificates import make_certificates
from services.runtime.ports import free_port
from tests.gateway.openai_kit import GUIDE, START_SECONDS, command_of, smg
from tests.waiting import wait_until

pytestmark = pytest.mark.processes

HANDSHAKE = b"\x16\x03"
"""How a TLS connection begins."""
FILES = {"ca-cert-paths": "ca.pem", "client-cert-path": "client.pem"}
FILES |= {"client-key-path": "client.key"}


@contextmanager
def silent_engine(scheme: str, folder: Path) -> Iterator[tuple[Callable[[], bytes], Path]]:
    """A gateway with every flag for TLS, whose engine takes connections and answers nothing.

    What the engine hears at first of the next connection, and the gateway's log.
    """
    make_certificates(folder / "certs")
    secured = [w for flag, file in FILES.items() for w in (f"--{flag}", folder / "certs" / file)]
    ports = {"port": str(free_port()), "prometheus_port": str(free_port())}
    log = folder / "log"
    with socket.create_server(("127.0.0.1", 0)) as listening, log.open("wb") as said:
        listening.settimeout(START_SECONDS)

        def heard() -> bytes:
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(5.0)
                return connection.recv(4096)

        where = f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
        words = command_of("gateway", host="127.0.0.1", worker_urls=where, **ports)
        process = subprocess.Popen([smg(), *words, *secured], stdout=said, stderr=said)
        try:
            yield heard, log
        finally:
            process.kill()
            process.wait(timeout=60)


def test_a_grpcs_engine_is_given_up_without_a_handshake(tmp_path: Path):
    with silent_engine("grpcs", tmp_path) as (heard, log):
        given_up = re.compile(rb"gRPC connection failed: .*?transport error", re.DOTALL)
        wait_until(lambda: given_up.search(log.read_bytes()), START_SECONDS)
        assert not heard().startswith(HANDSHAKE)


def test_the_flags_are_for_engines_of_the_http_kind(tmp_path: Path):
    """Otherwise the test above could not fail."""
    with silent_engine("https", tmp_path) as (heard, _):
        assert heard().startswith(HANDSHAKE)


def test_the_page_says_so():
    words = " ".join(GUIDE.read_text("utf-8").split())
    assert "smg 1.13.0 speaks no TLS to gRPC engines" in words
    assert all(f"`--{flag}`" in words for flag in ("ca-cert-paths", "client-cert-path"))
