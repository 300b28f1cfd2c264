"""What a round costs an orchestrator is measured on a real one."""

import pytest

from bench.orchestrator_cost.__main__ import measured, parser, show

pytestmark = pytest.mark.processes


def test_a_case_is_measured_on_a_real_orchestrator_and_has_a_line():
    asked = ["--sessions", "2", "--sampling", "1.0", "--seconds", "0.5", "--tokens", "32"]
    head, row = show(measured(parser().parse_args(asked))).splitlines()
    assert "CPU ms/round" in head
    checkout, states, moved, sessions, traced, cpu, quiet, token, rounds, _, *stayed = row.split()
    assert (checkout, states, moved, sessions, traced) == ("this", "0", "0.000", "2", "100%")
    assert 0 < float(quiet) <= float(cpu)
    assert 0 < float(token) <= float(cpu)
    assert float(rounds) > 0
    # Steps and drafts went through it.
    assert all(float(part.strip(",")) > 0 for part in stayed if part != "/"), row
