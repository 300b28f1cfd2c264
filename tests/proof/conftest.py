"""What proofs stand on: clusters whose verifiers run their sessions, and laws in float64."""

from collections.abc import Iterator

import pytest

from tests.integration import cluster
from tests.proof.formed import exact_laws


@pytest.fixture(autouse=True)
def running_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters of the loop that is proved, where they are not anyway."""
    monkeypatch.setattr(cluster, "PROTOCOL", 2, raising=False)


@pytest.fixture
def in_float64() -> Iterator[None]:
    """Laws of rows as exact as they can be told apart."""
    with exact_laws():
        yield
