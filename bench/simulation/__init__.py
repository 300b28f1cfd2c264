"""A simulator of sessions in exact time: the served round machine and pacing, no model, no clock.

`simulate(Scenario(...))` runs `orchestrator.core.rounds` with the policies of
`orchestrator.core.pacing` against a verifier and a drafter whose forwards, links and store
take given times (`scenario`), on texts that say where the drafter is right (`texts`); or, with
`trees`, against the served drafter of the default trees (`tree_drafter`), on texts that a target
wrote (`recorded`). The text of every session is checked against the target's own.
"""

from __future__ import annotations

from bench.simulation.report import Report
from bench.simulation.run import Simulation, simulate
from bench.simulation.scenario import PLAIN, KeptBranches, Scenario, StepTime
from bench.simulation.texts import Agreement, Independent, Listed, Runs

__all__ = [
    "PLAIN",
    "Agreement",
    "Independent",
    "KeptBranches",
    "Listed",
    "Report",
    "Runs",
    "Scenario",
    "Simulation",
    "StepTime",
    "simulate",
]
