"""`paceline bench`: plain decoding, pacings and rejection rules, side by side in one run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from paceline import PacelineError
from rich.console import Console

from bench.comparison import compare
from bench.figures import figures_of
from bench.machine import machine
from bench.options import (
    PLAIN,
    PLAIN_ALL,
    BenchOptions,
    baselines,
    cores_in_words,
    drafting,
    plain,
)
from bench.prompts import load_prompts
from bench.report import print_report, write_json
from bench.runner import Configuration, Schedule, Trial, run_schedule
from services.common.errors import PacelineError as ServerError
from services.console.cluster import ClusterOptions
from services.console.lifetime import unless_stopped
from services.console.local import local_cluster
from services.console.process import complain
from services.console.tether import available_cores

RESULTS = Path(__file__).parent / "results"
INTERRUPTED = 130
WIDTH = 140


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
    options.check()
    prompts = load_prompts(options.prompts, options.num_prompts)
    return Schedule(prompts, options.repeats, options.concurrency, options.sampling, options.seed)


async def _measure(options: BenchOptions, schedule: Schedule, progress: Progress) -> bool:
    async with _servers(options) as configurations:
        progress.configurations += configurations
        await run_schedule(configurations, schedule, progress.trials, say)
    return True


@asynccontextmanager
async def _servers(options: BenchOptions) -> AsyncIterator[list[Configuration]]:
    """Every configuration, served: each pacing by an orchestrator of one cluster.

    Rules are told apart by one another: those runs need no plain decoding on all cores.
    """
    async with AsyncExitStack() as stack:
        drafters = ClusterOptions(
            target=options.target,
            draft=options.draft,
            method=options.method,
            dtype=options.dtype,
            draft_dtype=options.draft_dtype,
            pacings=options.served_pacings,
        )
        cluster = await stack.enter_async_context(local_cluster(drafters, say))
        own = cores_in_words(options.cores)["verifier"]
        configurations = [
            plain(options, PLAIN, cluster.address, own),
            *drafting(options, cluster.addresses),
        ]
        if options.cores.drafters and not options.rejection_sample_methods:
            alone = ClusterOptions(target=options.target, dtype=options.dtype, drafters=0)
            other = await stack.enter_async_context(local_cluster(alone, say))
            everything = f"verifier {len(available_cores())}"
            configurations.append(plain(options, PLAIN_ALL, other.address, everything))
        yield configurations


def _conclude(options: BenchOptions, progress: Progress, *, complete: bool) -> None:
    """Print and write what there is."""
    if not progress.trials:
        return
    names = [one.name for one in progress.configurations]
    # Without a core for drafting, plain decoding has all cores already.
    all_cores = PLAIN_ALL if PLAIN_ALL in names else PLAIN
    figures = [
        figures_of(progress.trials, one.name, PLAIN, all_cores, exact=one.exact)
        for one in progress.configurations
    ]
    comparisons = [compare(progress.trials, *pair) for pair in baselines(options)]
    setting = _setting(options, progress.configurations, complete)
    # A file has no width; a table folded to 80 columns is hard to read.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    print_report(console, figures, setting, comparisons)
    path = options.out or RESULTS / f"bench-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    try:
        write_json(path, figures, progress.trials, setting, comparisons)
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
        "draft_dtype": options.draft_dtype or options.dtype,
        "prompts": f"{options.num_prompts} of {options.prompts.name}, first turns",
        "sampling": options.sampling,
        "speculation": options.speculation(""),
        "repeats": options.repeats,
        "concurrency": options.concurrency,
        "threads": {one.name: one.cores for one in configurations},
        "machine": machine(),
    }


def say(line: str) -> None:
    """Progress, apart from the results on stdout."""
    print(f"paceline bench: {line}", file=sys.stderr, flush=True)
