"""Published traces of AMUSD (McDanel 2024), replayed: what each pacing makes of the same text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench.simulation.run import simulate
from bench.simulation.scenario import PLAIN, KeptBranches, Scenario, StepTime
from bench.simulation.texts import Listed
from bench.synthetic.traces import DRAFTED, Trace
from orchestrator.core.pacing import POLICIES

SYNCHRONOUS = "fixed, bare"


def scenario_of(trace: Trace, network_ms: float) -> Scenario:
    """The trace behind links of `network_ms` there and back.

    A verify takes the same whatever its size; a round without drafts is a plain one.
    """
    return Scenario(
        text=Listed(trace.places),
        verify=StepTime(trace.plain.token_ms, several_ms=trace.sd.verify_ms),
        draft=StepTime(trace.sd.draft_ms),
        hop_ms=0.5 * network_ms,
        persist_ms=0.0,
        tokens=len(trace.places),
    )


@dataclass(frozen=True, slots=True)
class Replay:
    """Milliseconds per token of one way to decode a trace."""

    trace: str
    network_ms: float
    way: str
    ms_per_token: float
    over_synchronous: float


def replays(
    traces: Sequence[Trace], networks_ms: Sequence[float], rates: Sequence[float]
) -> Iterator[Replay]:
    """Every pacing on every trace; `rates` are branch hit rates, tried with bare `eager`."""
    for trace in traces:
        for network_ms in networks_ms:
            ways = _ways(scenario_of(trace, network_ms), rates)
            ms = {way: simulate(scenario).ms_per_token for way, scenario in ways.items()}
            for way, taken in ms.items():
                yield Replay(trace.name, network_ms, way, taken, ms[SYNCHRONOUS] / taken)


def _ways(base: Scenario, rates: Sequence[float]) -> dict[str, Scenario]:
    ways = {PLAIN: replace(base, pacing=PLAIN)}
    ways[SYNCHRONOUS] = replace(base, pacing="fixed", window=DRAFTED, fallback=False)
    for name in POLICIES:
        if name != "fixed":
            ways[name] = replace(base, pacing=name)
            ways[f"{name}, bare"] = replace(base, pacing=name, fallback=False)
    for rate in rates:
        kept = KeptBranches(rate)
        ways[f"eager, bare, branches {rate:g}"] = replace(ways["eager, bare"], kept=kept)
    return ways
