"""`paceline bench`: plain decoding, `fixed` and `eager`, side by side in one run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paceline import PacelineError
from rich.console import Console

from bench.figures import figures_of
from bench.machine import machine
from bench.prompts import SPEC_BENCH, load_prompts
from bench.report import print_report, write_json
from bench.runner import Configuration, Schedule, Trial, run_schedule
from services.common.errors import PacelineError as ServerError
from services.console.cluster import ClusterOptions
from services.console.cores import CorePlan, plan_cores
from services.console.lifetime import unless_stopped
from services.console.local import local_cluster
from services.console.process import complain
from services.console.tether import available_cores

PACINGS = ("fixed", "eager")
PLAIN = "plain"
PLAIN_ALL = "plain, all cores"
RESULTS = Path(__file__).parent / "results"
INTERRUPTED = 130
WIDTH = 140

_NO_DRAFTS: Mapping[str, Any] = {"disable_speculative_decoding": True}


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to measure. `out` None: a file in bench/results."""

    target: str
    draft: str | None = None
    method: str = ""
    dtype: str = "float32"
    prompts: Path = SPEC_BENCH
    num_prompts: int = 6
    max_tokens: int = 64
    temperature: float = 0.0
    seed: int = 1
    repeats: int = 3
    concurrency: int = 1
    out: Path | None = None

    @property
    def cores(self) -> CorePlan:
        """The cores of verifier and drafter."""
        return plan_cores(available_cores(), 1, 0 if self.draft is None else 1)


@dataclass
class Progress:
    """What a run has measured so far, and under which settings."""

    configurations: list[Configuration] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)


def run_bench(options: BenchOptions) -> int:
    """Measure, print a table and write JSON; the exit status.

    A run that is stopped prints what it has.
    """
    progress = Progress()
    try:
        schedule = _schedule(options)
        done = asyncio.run(unless_stopped(_measure(options, schedule, progress)))
    except (ServerError, PacelineError) as error:
        _conclude(options, progress, complete=False)
        return complain("bench", error, status=1)
    _conclude(options, progress, complete=bool(done))
    return 0 if done else INTERRUPTED


def _schedule(options: BenchOptions) -> Schedule:
    sampling = {
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "seed": options.seed,
    }
    prompts = load_prompts(options.prompts, options.num_prompts)
    return Schedule(prompts, options.repeats, options.concurrency, sampling)


async def _measure(options: BenchOptions, schedule: Schedule, progress: Progress) -> bool:
    async with _servers(options) as configurations:
        progress.configurations += configurations
        await run_schedule(configurations, schedule, progress.trials, say)
    return True


@asynccontextmanager
async def _servers(options: BenchOptions) -> AsyncIterator[list[Configuration]]:
    """Every configuration, served: the pacings by orchestrators of one cluster."""
    async with AsyncExitStack() as stack:
        drafting = ClusterOptions(
            target=options.target,
            draft=options.draft,
            method=options.method,
            dtype=options.dtype,
            pacings=PACINGS,
        )
        cluster = await stack.enter_async_context(local_cluster(drafting, say))
        cores = _cores_in_words(options.cores)
        configurations = [
            Configuration(PLAIN, cluster.address, cores["verifier"], _NO_DRAFTS),
            *(
                Configuration(pacing, address, f"{cores['verifier']} + {cores['drafter']}")
                for pacing, address in zip(PACINGS, cluster.addresses, strict=True)
            ),
        ]
        if options.cores.drafters:
            alone = ClusterOptions(target=options.target, dtype=options.dtype, drafters=0)
            other = await stack.enter_async_context(local_cluster(alone, say))
            everything = f"verifier {len(available_cores())}"
            configurations.append(Configuration(PLAIN_ALL, other.address, everything, _NO_DRAFTS))
        yield configurations


def _cores_in_words(plan: CorePlan) -> dict[str, str]:
    drafter = len(plan.drafters[0]) if plan.drafters else "none of its own"
    return {"verifier": f"verifier {len(plan.verifiers[0])}", "drafter": f"drafter {drafter}"}


def _conclude(options: BenchOptions, progress: Progress, *, complete: bool) -> None:
    """Print and write what there is."""
    if not progress.trials:
        return
    names = [one.name for one in progress.configurations]
    # Without a core for drafting, plain decoding has all cores already.
    all_cores = PLAIN_ALL if PLAIN_ALL in names else PLAIN
    figures = [figures_of(progress.trials, name, PLAIN, all_cores) for name in names]
    setting = _setting(options, progress.configurations, complete)
    # A file has no width; a table folded to 80 columns is hard to read.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    print_report(console, figures, setting)
    path = options.out or RESULTS / f"bench-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    try:
        write_json(path, figures, progress.trials, setting)
        print(f"written to {path}")
    except OSError as error:
        say(f"{path} cannot be written: {error.strerror}")


def _setting(
    options: BenchOptions, configurations: Sequence[Configuration], complete: bool
) -> dict[str, object]:
    return {
        "complete": complete,
        "target": options.target,
        "drafting": options.draft or options.method or "ngram",
        "dtype": options.dtype,
        "prompts": f"{options.num_prompts} of {options.prompts.name}, first turns",
        "sampling": f"temperature {options.temperature:g}, at most {options.max_tokens} tokens",
        "repeats": options.repeats,
        "concurrency": options.concurrency,
        "threads": {one.name: one.cores for one in configurations},
        "machine": machine(),
    }


def say(line: str) -> None:
    """Progress, apart from the results on stdout."""
    print(f"paceline bench: {line}", file=sys.stderr, flush=True)
