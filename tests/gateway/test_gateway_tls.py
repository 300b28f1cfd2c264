"""What the gateway speaks to an engine: plaintext, and it shows nobody's token and certificate.

The page says so. When a newer smg fails these tests, its way may be secured, and the page changes.
"""

import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.cluster.certificates import make_certificates
from testkit.ports import free_port
from tests.gateway.openai_kit import GUIDE, START_SECONDS, command_of, smg
from tests.waiting import wait_until

pytestmark = pytest.mark.processes

HANDSHAKE = b"\x16\x03"
"""How a TLS connection begins."""
HTTP2 = b"PRI * HTTP/2.0"
API_KEY = "a-key-for-the-workers"


class Ear:
    """A port that takes connections, keeps the first bytes of each, and answers nothing."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.heard: list[bytes] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(1.0)
                try:
                    self.heard.append(connection.recv(4096))
                except OSError:
                    self.heard.append(b"")

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)


@contextmanager
def overheard(scheme: str, folder: Path) -> Iterator[tuple[Ear, Callable[[], str]]]:
    """A gateway that is to reach an engine at an ear, with every flag for TLS; and its log."""
    make_certificates(folder / "certs")
    flags = {"ca-cert-paths": "ca.pem", "client-cert-path": "client.pem"}
    files = {**flags, "client-key-path": "client.key"}
    secured = [w for flag, file in files.items() for w in (f"--{flag}", folder / "certs" / file)]
    ear, log = Ear(), folder / "log"
    words = command_of(
        "gateway",
        host="127.0.0.1",
        port=str(free_port()),
        prometheus_port=str(free_port()),
        worker_urls=f"{scheme}://127.0.0.1:{ear.port}",
    )
    with log.open("wb") as said:
        command = [smg(), *words, "--api-key", API_KEY, *secured]
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        try:
            yield ear, lambda: re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace"))
        finally:
            process.kill()
            process.wait(timeout=60)
            ear.close()


def wait_for(condition: Callable[[], object], log: Callable[[], str]) -> None:
    wait_until(condition, START_SECONDS, lambda: log()[-2000:])


def test_a_grpcs_engine_is_given_up_without_a_handshake(tmp_path: Path):
    with overheard("grpcs", tmp_path) as (ear, log):
        wait_for(lambda: "gRPC connection failed: transport error" in log(), log)
        # Twice, so that what the first attempt said has been heard.
        wait_for(lambda: log().count("grpc health check failed") > 1, log)
    assert [begun for begun in ear.heard if begun.startswith(HANDSHAKE)] == []


def test_a_grpc_engine_is_spoken_to_in_plaintext_whatever_certificates_there_are(tmp_path: Path):
    with overheard("grpc", tmp_path) as (ear, log):
        wait_for(lambda: any(begun.startswith(HTTP2) for begun in ear.heard), log)
    assert [begun for begun in ear.heard if begun.startswith(HANDSHAKE)] == []


def test_the_flags_are_for_engines_of_the_http_kind(tmp_path: Path):
    """Otherwise the tests above could not fail."""
    with overheard("https", tmp_path) as (ear, log):
        wait_for(lambda: any(begun.startswith(HANDSHAKE) for begun in ear.heard), log)


def test_the_page_says_so():
    words = " ".join(GUIDE.read_text("utf-8").split())
    assert "smg 1.13.0 speaks no TLS to gRPC engines" in words
    assert all(one in words for one in ("`grpcs://`", "`--ca-cert-paths`", "`--client-cert-path`"))
