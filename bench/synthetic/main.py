"""`paceline bench --synthetic`: ways to decode with workers that sleep for given times."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from bench.options import BenchOptions
from bench.runner import Configuration, Schedule
from bench.synthetic.network import Network, parse_delays
from bench.synthetic.scenario import Scenario, Worlds, make_scenario
from bench.synthetic.serving import Way, served, ways
from services.contract.errors import StartError

LABEL = "synthetic"
MOST_SESSIONS = 512


@dataclass(frozen=True, slots=True)
class Synthetic:
    """A bench that runs no model; `delays`: milliseconds each way, by role."""

    scenario: Scenario
    delays: Mapping[str, float]
    ways: list[Way]
    schedule: Schedule

    @classmethod
    def of(cls, options: BenchOptions) -> Synthetic:
        """Raises StartError for what cannot be run."""
        possible = range(1, MOST_SESSIONS + 1)
        if not options.concurrency or not set(options.concurrency).issubset(possible):
            raise StartError(f"--concurrency: without a model, numbers of 1 to {MOST_SESSIONS}")
        scenario = make_scenario(options.synthetic, options.trace, options.max_tokens)
        rules = options.rejection_sample_methods
        chosen = ways(options.pacings, options.num_speculative_tokens, rules)
        drawn = bool(rules) or scenario.spec.laws is not None
        sampling = {"max_tokens": scenario.tokens, "temperature": 1.0 if drawn else 0.0}
        schedule = Worlds((), options.repeats, options.concurrency, sampling)
        delays = parse_delays(options.delay_ms)
        return cls(scenario, delays, chosen, schedule)

    @asynccontextmanager
    async def served(self, report: Callable[[str], None]) -> AsyncIterator[list[Configuration]]:
        """Every way to decode. Raises StartError."""
        with Network(self.delays) as network:
            spec, change = self.scenario.spec, network.before
            async with served(self.ways, spec, change, report) as each:
                yield each

    def setting(self) -> dict[str, object]:
        """What was measured, and what is published of it."""
        spec = self.scenario.spec
        told = spec.model_dump(by_alias=True, exclude_defaults=True)
        if "accepted" in told["agreement"]:
            told["agreement"] = f"as in the published trace {spec.name}"
        published = self.scenario.published
        return {
            "model": f"{spec.target_id}, {spec.draft_id}: no model runs",
            LABEL: told,
            **({"published, ms/token": dict(published)} if published else {}),
            **({"accepted by shared noise": round(spec.laws.coupled, 4)} if spec.laws else {}),
            "network_ms_each_way": dict(self.delays),
            "tokens": self.scenario.tokens,
            "temperature": self.schedule.sampling["temperature"],
            "repeats": self.schedule.repeats,
            "concurrency": self.schedule.levels,
            "flags": {way.name: " ".join(way.flags) for way in self.ways},
        }
