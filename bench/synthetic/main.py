"""`paceline bench --synthetic`: ways to decode with workers that sleep for given times."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline import PacelineError

from bench.machine import machine, origin
from bench.options import PLAIN, BenchOptions
from bench.output import publish, result_file, say, table_console
from bench.report import trial_content
from bench.runner import Trial
from bench.synthetic.figures import figures_of
from bench.synthetic.measuring import measure
from bench.synthetic.network import Network, parse_delays
from bench.synthetic.report import LABEL, print_report, summary_of
from bench.synthetic.scenario import Scenario, make_scenario
from bench.synthetic.serving import FIXED, Way, served, ways
from services.cluster.flags import complain
from services.cluster.lifetime import unless_stopped
from services.cluster.progress import INTERRUPTED
from services.contract.errors import PacelineError as ServerError
from services.contract.errors import StartError


@dataclass(frozen=True, slots=True)
class _Run:
    """A run that is asked for, and what it has measured so far."""

    options: BenchOptions
    scenario: Scenario
    delays: Mapping[str, float]
    ways: list[Way]
    trials: list[Trial] = field(default_factory=list)

    @classmethod
    def of(cls, options: BenchOptions) -> _Run:
        """Raises StartError for what cannot be run."""
        if len(options.concurrency) != 1 or options.concurrency[0] < 1:
            raise StartError("--concurrency: without a model, one number of 1 or more")
        scenario = make_scenario(options.synthetic, options.trace, options.max_tokens)
        chosen = ways(options.pacings, options.num_speculative_tokens)
        return cls(options, scenario, parse_delays(options.delay_ms), chosen)

    async def measure(self) -> bool:
        """Start everything and measure."""
        options, scenario = self.options, self.scenario
        with Network(self.delays) as network:
            async with served(self.ways, scenario.spec, network.before, say) as each:
                await measure(
                    each, scenario.tokens, options.repeats, options.concurrency[0], self.trials, say
                )
        return True

    def conclude(self, *, complete: bool) -> None:
        """Print and write what there is."""
        if not self.trials:
            return
        measured = {trial.configuration for trial in self.trials}
        figures = [
            figures_of(self.trials, way.name, (PLAIN, FIXED))
            for way in self.ways
            if way.name in measured
        ]
        setting = self._setting(complete)
        print_report(table_console(), figures, self.scenario.published, setting)
        path = self.options.out or result_file("synthetic")
        trials = [trial_content(one) for one in self.trials]
        publish(summary_of(figures, setting), trials, path, self.options.summary)

    def _setting(self, complete: bool) -> dict[str, object]:
        spec = self.scenario.spec
        told = spec.model_dump(by_alias=True, exclude_defaults=True)
        if "accepted" in told["agreement"]:
            told["agreement"] = f"as in the published trace {spec.name}"
        return {
            "complete": complete,
            "model": f"{spec.target_id}, {spec.draft_id}: no model runs",
            LABEL: told,
            "network_ms_each_way": dict(self.delays),
            "tokens": self.scenario.tokens,
            "repeats": self.options.repeats,
            "concurrency": self.options.concurrency[0],
            "flags": {way.name: " ".join(way.flags) for way in self.ways},
            "machine": machine(),
            **origin(),
        }


def run_synthetic(options: BenchOptions) -> int:
    """Measure, print a table and write JSON; the exit status.

    A run that is stopped prints what it has.
    """
    try:
        run = _Run.of(options)
    except ServerError as error:
        return complain("bench", error, status=1)
    try:
        done = asyncio.run(unless_stopped(run.measure()))
    except (ServerError, PacelineError) as error:
        run.conclude(complete=False)
        return complain("bench", error, status=1)
    run.conclude(complete=bool(done))
    return 0 if done else INTERRUPTED
