"""Real processes: `paceline up` on a tiny model, asked through `paceline generate`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.models import tiny_model_folder

PROMPT = "the small drafter rides ahead and the large verifier checks the small drafter"
# Against what hangs: a busy machine may need minutes for a start.
START_SECONDS = 250.0
COMMAND = (sys.executable, "-m", "paceline")
KV_TOKENS = 8192


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Several starts in a row may take minutes where other work has the cores."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(900))


def run(
    *arguments: str, timeout: float = START_SECONDS, command: Sequence[str] = COMMAND, **more
) -> subprocess.CompletedProcess:
    """One `paceline` command to its end."""
    more = {"capture_output": True, "text": True, "timeout": timeout, "check": False, **more}
    return subprocess.run([*command, *arguments], **more)


@dataclass
class Up:
    """A running `paceline up`."""

    process: subprocess.Popen[str]
    address: str
    command: Sequence[str] = COMMAND
    seen: list[psutil.Process] = field(default_factory=list)

    def workers(self, role: str) -> list[psutil.Process]:
        """Live processes that `ps` shows as `paceline ROLE`."""
        found = [p for p in self.everything() if f"paceline {role}" in " ".join(_words(p))]
        return [process for process in found if process.is_running()]

    def everything(self) -> list[psutil.Process]:
        """Every descendant there is, and those there were."""
        if self.process.poll() is None:
            now = psutil.Process(self.process.pid).children(recursive=True)
            self.seen = list({*self.seen, *now})
        return self.seen

    def left(self) -> list[psutil.Process]:
        """What still runs of all that was ever started."""
        _, alive = psutil.wait_procs(self.seen, timeout=60)
        return [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]

    def generate(self, *arguments: str, prompt: str = PROMPT) -> list[dict[str, Any]]:
        """The events of `paceline generate --json`."""
        asked = ("generate", "--address", self.address, "--json", "--raw", *arguments, prompt)
        done = run(*asked, command=self.command)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def stop(self) -> int:
        """Ctrl-C; the exit status."""
        self.everything()
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=60)


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def tokens(events: list[dict[str, Any]]) -> list[int]:
    """All token ids of a stream."""
    return [t for event in events if event["event"] == "chunk" for t in event["token_ids"]]


_STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(scope="module", autouse=True)
def nothing_outlives_its_module() -> Iterator[None]:
    """A cluster whose test failed before it ended it takes no core from the tests behind it."""
    yield
    while _STARTED:
        process = _STARTED.pop()
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=60)


def start_up(
    folder: Path,
    *arguments: str,
    seconds: float = START_SECONDS,
    command: Sequence[str] = COMMAND,
) -> Up:
    """Start `paceline up` and wait until it serves.

    Drafts are sent whether they pay or not: beside tiny targets they seldom do.
    """
    ready = folder / "ready"
    process = subprocess.Popen(
        [*command, "up", "--port", "0", "--ready-file", str(ready), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PACELINE_PACING": "eager"},
    )
    _STARTED.append(process)
    deadline = time.monotonic() + seconds
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"not serving: {process.communicate()[0]}")
        time.sleep(0.05)
    up = Up(process, ready.read_text().strip(), command)
    up.everything()
    return up


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny target and another tiny model that drafts for it."""
    folder = tmp_path_factory.mktemp("models")
    tiny_model_folder(folder, "llama", seed=0)
    tiny_model_folder(folder, "llama", seed=3)
    return folder


@pytest.fixture(scope="module")
def up(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Up:
    """One cluster with a model drafter for a whole test file; its options are in a file."""
    folder = tmp_path_factory.mktemp("up")
    told = f'target = "{models / "llama-0"}"\ndraft = "{models / "llama-3"}"\n'
    (folder / "up.toml").write_text(f"{told}[verifier]\nkv-capacity-tokens = {KV_TOKENS}\n")
    return start_up(folder, "--config", str(folder / "up.toml"))
