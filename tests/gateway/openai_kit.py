"""The real gateway, smg, as a process in front of a real cluster: the published recipe."""

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml

from services.runtime.ports import free_port
from tests.tools import tool

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "openai.md"
RECIPE = ROOT / "examples" / "openai" / "compose.yaml"
START_SECONDS = 250.0


def recipe() -> dict[str, Any]:
    """The services of the published recipe."""
    services: dict[str, Any] = yaml.safe_load(RECIPE.read_text())["services"]
    return services


def command_of(service: str, **changed: str) -> list[str]:
    """The command of one service of the recipe, some of its values changed."""
    given = recipe()[service]["command"]
    known = {word.partition("=")[0] for word in given}
    assert {f"--{name.replace('_', '-')}" for name in changed} <= known
    words = []
    for word in given:
        flag, _, value = word.partition("=")
        value = changed.get(flag.removeprefix("--").replace("-", "_"), value)
        words.append(f"{flag}={value}" if value else flag)
    return words


def smg() -> str:
    """The path of the gateway's program, if it runs on this machine."""
    program = tool("smg", "pip install smg")
    tried = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    if tried.returncode:
        reason = f"smg does not run here: {(tried.stderr or tried.stdout).strip()[-200:]}"
        if os.environ.get("PACELINE_REQUIRE_TOOLS") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return program


@dataclass
class Gateway:
    """A gateway that has found its model."""

    process: subprocess.Popen[bytes]
    url: str
    model: str
    key: str = "none"

    def client(self, **options: Any) -> openai.OpenAI:
        """The OpenAI client, which shows every error at once."""
        usual = {"api_key": self.key, "max_retries": 0, "timeout": 120.0}
        return openai.OpenAI(base_url=self.url, **usual | options)


@contextmanager
def gateway(worker: str, log: Path, *flags: str, key: str = "none") -> Iterator[Gateway]:
    """The recipe's gateway in front of one orchestrator, from its first model to its end.

    `flags` are added to it; `key`: what its clients show.
    """
    port = free_port()
    words = command_of(
        "gateway",
        host="127.0.0.1",
        port=str(port),
        prometheus_port=str(free_port()),
        worker_urls=f"grpc://{worker}",
    )
    with log.open("wb") as said:
        process = subprocess.Popen([smg(), *words, *flags], stdout=said, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}/v1"
            yield Gateway(process, url, _model(process, url, log, key), key)
        finally:
            process.kill()
            process.wait(timeout=60)


def _model(process: subprocess.Popen[bytes], url: str, log: Path, key: str) -> str:
    """The one model that it serves; waits until it has its tokenizer, too."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        try:
            asked = urllib.request.Request(
                f"{url}/models", headers={"Authorization": f"Bearer {key}"}
            )
            with urllib.request.urlopen(asked, timeout=10) as answer:
                listed = json.load(answer)["data"]
            if listed and b"Successfully loaded tokenizer" in log.read_bytes():
                [model] = listed
                return str(model["id"])
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        time.sleep(0.1)
    raise AssertionError(f"no model in time: {log.read_text(errors='replace')[-2000:]}")
