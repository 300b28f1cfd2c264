"""What holds for every test."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from services.engine.checkpoint.files import CACHE_VARIABLE, cache_folder
from tests.tiers import is_slow

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from tests.otlp_receiver import OtlpReceiver

# A machine that runs tests may stand still for seconds: what is slow is not wrong.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("full", _PATIENT)
# A fifth of the examples (see `tests.tries`), and the same ones every time.
settings.register_profile("quick", _PATIENT, max_examples=20, derandomize=True)
settings.load_profile("full")

# Where real servers, processes and signals answer in real time. A slow test of theirs that fails is
# tried once more, and both attempts are reported; what computes laws and text is never, and
# nothing in the first tier.
REAL_TIME = {
    "bench",
    "console",
    "contracts",
    "docs",
    "faults",
    "fuzz",
    "gateway",
    "integration",
    "monitoring",
    "processes",
    "services",
    "synthetic",
    "telemetry",
    "training",
    "vllm",
}
NEEDED_BYTES = 256 << 20
"""In each folder that tests write to; several times what they had there at once."""
_HERE = Path(__file__).parent


@pytest.fixture
def no_otel(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment says of telemetry is forgotten."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def receiver(no_otel: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    """A collector; whatever starts from here on sends its telemetry there."""
    from tests.otlp_receiver import OtlpReceiver

    with OtlpReceiver() as receiver:
        for name, value in receiver.environment.items():
            monkeypatch.setenv(name, value)
        yield receiver


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A run without slow tests does not even import their files."""
    whole = not config.option.markexpr.startswith("not slow")
    if (
        whole
        or not collection_path.name.startswith("test_")
        or _HERE not in collection_path.parents
    ):
        return None
    return is_slow(collection_path.relative_to(_HERE).as_posix()) or None


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        require_room(gettempdir(), "TMPDIR")
        require_room(cache_folder(None), CACHE_VARIABLE)


def require_room(folder: str | Path, variable: str) -> None:
    """End the run in one line where most tests could not write what they must.

    `variable`: names another folder.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        raise pytest.UsageError(f"{folder}: {error.strerror}; set {variable}") from None
    if free < NEEDED_BYTES:
        wanted = f"tests need {NEEDED_BYTES >> 20} MiB"
        raise pytest.UsageError(f"{folder} is full: {wanted}; make room, or set {variable}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.relative_to(_HERE)
        if is_slow(f"{path.as_posix()}::{item.nodeid.partition('::')[2]}"):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") and path.parts[0] in REAL_TIME:
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Every run ends with what was tried again: a test that passes at last is still news."""
    terminalreporter.ensure_newline()
    attempts = terminalreporter.stats.get("rerun", [])
    terminalreporter.write_line(retried([attempt.nodeid for attempt in attempts]))


def retried(attempts: Collection[str]) -> str:
    """One line of the tests (by node id) whose attempts failed and were made again."""
    each = [f"{name} ({times}x)" for name, times in sorted(Counter(attempts).items())]
    return f"retried: {len(attempts)}" + (f", {', '.join(each)}" if each else "")
