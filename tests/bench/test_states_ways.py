"""The two ways of hidden states, measured between real processes."""

import pytest

from research.states_ways import measure, parser


@pytest.mark.parametrize("way", ["through", "direct"])
def test_rounds_are_whole_when_a_drafter_has_the_commit_and_its_rows(way) -> None:
    asked = parser().parse_args(["--seconds", "0.5", "--sessions", "3", "--step-ms", "20"])
    found = measure(512, way, asked)
    assert found["rounds"] % 3 == 0
    assert found["rounds"] > 0
    assert found["delay ms"] > 0
    parts = [found[f"{part} ms"] for part in ("orchestrator", "verifier", "drafter")]
    assert min(parts) > 0
    assert found["together ms"] == pytest.approx(sum(parts))
