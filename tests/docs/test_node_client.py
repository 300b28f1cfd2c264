"""The client in `examples/node`, run by Node.js against real processes."""

import asyncio
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from paceline import Client

from services.cluster.certificates import make_certificates
from services.runtime.serving.bearer import token_entry
from testkit.chaos.proxy import Network, Proxy
from tests.docs import npm
from tests.models import tiny_model_folder
from tests.processes.conftest import PROMPT, Up, start_up
from tests.tools import tool

pytestmark = pytest.mark.processes

TOKEN = "a-token-of-a-tenant"
TOKENS = 300
HEARD = 40
"""Most bytes that are read before the connection is cut."""
WAY_SECONDS = 0.02


@dataclass
class Secured:
    """A cluster with TLS, client certificates and tokens, behind a proxy; and a client."""

    address: str
    proxy: Proxy
    certs: Path
    client: Path

    def environment(self, **changed: str) -> dict[str, str]:
        """Who the client is."""
        return {
            **os.environ,
            "PACELINE_TOKEN": TOKEN,
            "PACELINE_CA": str(self.certs / "ca.pem"),
            "PACELINE_CERT": str(self.certs / "client.pem"),
            "PACELINE_KEY": str(self.certs / "client.key"),
            **changed,
        }

    def command(self, *flags: str) -> list[str]:
        node = tool("node", "apt install nodejs")
        # By its name: Node.js warns of addresses in certificates.
        port = self.proxy.address.rpartition(":")[2]
        return [node, "generate.js", "--address", f"localhost:{port}", *flags, PROMPT]

    def generate(self, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`generate.js` to its end."""
        return subprocess.run(
            self.command(*flags),
            cwd=self.client,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )

    def python(self) -> Client:
        """The Python client, on a way of its own."""
        ca, cert, key = (
            (self.certs / name).read_bytes() for name in ("ca.pem", "client.pem", "client.key")
        )
        return Client(self.address, token=TOKEN, ca=ca, cert=cert, key=key)

    def text(self, **options: object) -> str:
        """What the Python client gets."""

        async def ask() -> str:
            async with self.python() as client:
                return (await client.generate(PROMPT, **options)).text

        return asyncio.run(ask())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("node")
    client = npm.client(folder / "checkout")
    with pytest.MonkeyPatch.context() as patch, Network() as network:
        certs, tokens = folder / "certs", folder / "tokens.json"
        make_certificates(certs)
        tokens.write_text(json.dumps({"tenants": {"acme": {"tokens": [token_entry(TOKEN)]}}}))
        for name, value in {
            "TLS_CERT": certs / "server.pem",
            "TLS_KEY": certs / "server.key",
            "TLS_CA": certs / "ca.pem",
            "LINK_CERT": certs / "orchestrator.pem",
            "LINK_KEY": certs / "orchestrator.key",
            "LINK_CA": certs / "ca.pem",
            "TOKENS_FILE": tokens,
        }.items():
            patch.setenv(f"PACELINE_{name}", str(value))
        target = tiny_model_folder(folder, max_position_embeddings=1024)
        up = start_up(folder, "--target", str(target))
        try:
            proxy = network.proxy(lambda: up.address, delay=WAY_SECONDS)
            yield Secured(up.address, proxy, certs, client)
        finally:
            _end(up)


def _end(up: Up) -> None:
    up.everything()
    up.process.send_signal(signal.SIGTERM)
    up.process.wait(timeout=60)
    assert up.left() == []


def test_its_text_is_that_of_the_python_client_though_its_connection_is_cut(served: Secured):
    flags = ("--max-tokens", str(TOKENS), "--temperature", "0.8", "--seed", "5", "--ignore-eos")
    running = subprocess.Popen(
        served.command(*flags),
        cwd=served.client,
        env=served.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    assert running.stdout is not None
    heard = running.stdout.read(HEARD)
    assert served.proxy.cut() > 0
    rest, complaints = running.communicate(timeout=250)
    said = complaints.decode()
    assert running.returncode == 0, said
    whole = served.text(max_tokens=TOKENS, temperature=0.8, seed=5, ignore_eos=True)
    assert (heard + rest).decode() == whole
    [broken] = re.findall(r"\w+: .*; going on after token (\d+)", said)
    assert 0 < int(broken) < TOKENS
    assert said.count("session ") == 1
    assert "· seed 5" in said
    assert re.search(r"\d+ tokens · FINISH_REASON_\w+ · block efficiency \d", said)


def test_a_bad_request_says_its_status_and_its_field(served: Secured):
    ended = served.generate("--temperature=-1")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("INVALID_ARGUMENT: ")
    assert "\n  sampling.temperature: " in ended.stderr


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"PACELINE_TOKEN": "another"}, "UNAUTHENTICATED: "),
        ({"PACELINE_CERT": "", "PACELINE_KEY": ""}, "UNAVAILABLE: "),
    ],
)
def test_who_is_not_let_in_is_told_so(served: Secured, changed, status):
    ended = served.generate("--no-resume", **changed)
    assert ended.returncode == 1
    assert ended.stderr.startswith(status)
