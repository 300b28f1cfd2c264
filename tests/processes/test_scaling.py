"""A real cluster under a real load, as the scalers' own expressions see it in a real Prometheus."""

import pytest

from research.scaling.manifests import queries
from research.scaling.phases import Phase
from research.scaling.record import RecordOptions, record
from tests.tools import tool

pytestmark = pytest.mark.processes


async def test_a_load_that_comes_and_goes_is_seen_by_every_scaler():
    tool("prometheus", "apt install prometheus")
    # Longer than the phase: none of the four is between two sessions when they are counted.
    options = RecordOptions((Phase(4, 6), Phase(0, 1)), tokens=900)
    said = []
    made = await record(options, queries(), ["record"], said.append)
    assert (made.command, made.times) == ("python -m research.scaling record", (0.0, 5.0))
    assert made.sessions[1] == 4
    signals = {name: one.values for tier in made.signals.values() for name, one in tier.items()}
    assert all(value is not None for values in signals.values() for value in values)
    assert signals["streams"][1] == 4
    assert signals["queue"][1] > 0
    assert signals["wanted"][1] > 0
    # A prompt of 120 tokens and up to 900 more, of each of four sessions, in 36 000.
    assert 100 * 4 * 120 / 36_000 < signals["kv"][1] < 100 * 4 * 1100 / 36_000
