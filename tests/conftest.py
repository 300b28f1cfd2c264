"""What holds for every test."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from tests.otlp_receiver import OtlpReceiver

# A machine that runs tests may stand still for seconds: what is slow is not wrong.
settings.register_profile("paceline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("paceline")

# Where real servers, processes and signals answer in real time. A test of theirs that fails is
# tried once more, and both attempts are reported; what computes laws and text is never.
REAL_TIME = {
    "bench",
    "console",
    "contracts",
    "distill",
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
    "tuning",
    "vllm",
}
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(_HERE).parts[0] in REAL_TIME:
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
