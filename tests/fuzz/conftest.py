"""Clusters whose verifiers run their sessions."""

import pytest

from tests.integration import cluster


@pytest.fixture(autouse=True)
def running_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they are not that anyway."""
    monkeypatch.setattr(cluster, "PROTOCOL", 2, raising=False)
