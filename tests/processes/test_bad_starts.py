"""What real processes do with a start that cannot be: one line, a status, nothing else."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.conftest import run

pytestmark = pytest.mark.processes

NOWHERE = "redis://127.0.0.1:1"
AWAY = f"Redis at {NOWHERE} does not answer"


@pytest.fixture
def values(models: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    """What words in capitals stand for."""
    certificate = tmp_path / "cert.pem"
    certificate.write_text("a certificate")
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = str(server.getsockname()[1])
        yield {"CERT": str(certificate), "MODEL": str(models / "llama-0"), "TAKEN": taken}


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("orchestrator --tokens-file none.json", "tokens_file: cannot read none.json"),
        (f"orchestrator --redis {NOWHERE}", AWAY),
        ("drafter --cluster-token-file none", "cluster_token_file: cannot read none"),
        ("drafter --tls-cert CERT --tls-key none.key", "tls_key: cannot read none.key"),
        (f"drafter --redis {NOWHERE}", AWAY),
        ("verifier --target ./nowhere", "model ./nowhere: no such file or folder"),
        ("drafter --draft no/body", "model no/body: not a local file, and not on the hub"),
        ("drafter --port TAKEN", "address: cannot listen on 127.0.0.1:TAKEN"),
        ("drafter --health-port TAKEN", "health_port: cannot listen on 127.0.0.1:TAKEN"),
        (
            "verifier --target MODEL --threads 1 --kv-capacity-tokens 1000000000000",
            "kv_capacity_tokens: K/V of 1000000000000 tokens of MODEL takes 512000.0 GB",
        ),
    ],
)
def test_it_ends_with_one_json_line_and_a_status(values, tmp_path, command, named):
    role, *flags = command.split()
    for word, value in values.items():
        flags = [value if flag == word else flag for flag in flags]
        named = named.replace(word, value)
    flags = ["--port", "0", "--log-json", "--health-port", "0", *flags]
    done = run(role, *flags, env={**os.environ, "HF_HUB_OFFLINE": "1"}, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    # Of a taken port gRPC's core writes a line of its own.
    ours = [line for line in done.stderr.splitlines() if "add_port.cc" not in line]
    lines = [json.loads(line) for line in ours]
    [error] = [line for line in lines if line["level"] != "info"]
    assert named in error["message"]
    assert (error["level"], error["logger"]) == ("error", f"paceline.{role}")
    assert all("exception" not in line for line in lines)
    assert not any(named in line["message"] for line in lines if line is not error)


def test_a_setting_that_is_not_allowed_is_a_json_line_too() -> None:
    done = run("drafter", "--log-json", "--port", "70000")
    assert done.returncode == 2
    [line] = [json.loads(line) for line in done.stderr.splitlines()]
    assert "--port: '70000' is not allowed" in line["message"]
