import pytest

from services.runtime.telemetry import Telemetry


@pytest.fixture(autouse=True)
def _no_settings_from_outside(no_otel):
    """Of no test here."""


@pytest.fixture
def start():
    started: list[Telemetry] = []

    def start(role: str = "orchestrator", **options) -> Telemetry:
        started.append(Telemetry.start(role, f"{role}-1", **options))
        return started[-1]

    yield start
    for telemetry in started:
        telemetry.shutdown()


@pytest.fixture
def telemetry(start) -> Telemetry:
    """An orchestrator's, with a page."""
    return start(metrics_port=0)
