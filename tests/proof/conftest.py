"""What proofs stand on: laws in float64."""

from collections.abc import Iterator

import pytest

from tests.proof.formed import exact_laws


@pytest.fixture
def in_float64() -> Iterator[None]:
    """Laws of rows as exact as they can be told apart."""
    with exact_laws():
        yield
