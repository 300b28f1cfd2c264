from __future__ import annotations

import os

import pytest

from services.common.telemetry import Telemetry
from tests.otlp_receiver import OtlpReceiver


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def receiver(monkeypatch):
    with OtlpReceiver() as receiver:
        for name, value in receiver.environment.items():
            monkeypatch.setenv(name, value)
        yield receiver


@pytest.fixture
def start():
    started: list[Telemetry] = []

    def start(role: str = "orchestrator", **options) -> Telemetry:
        started.append(Telemetry.start(f"paceline-{role}", role, f"{role}-1", **options))
        return started[-1]

    yield start
    for telemetry in started:
        telemetry.shutdown()
