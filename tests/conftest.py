"""What holds for every test."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

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
    "faults",
    "fuzz",
    "integration",
    "processes",
    "services",
    "synthetic",
    "telemetry",
    "tuning",
}
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(_HERE).parts[0] in REAL_TIME:
            item.add_marker(pytest.mark.flaky(reruns=1))
