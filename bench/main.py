"""`paceline bench`: plain decoding, pacings, drafters, rules and peers, side by side in one run."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial

from paceline import PacelineError

from bench.configurations import baselines, cores_in_words, drafting, plain
from bench.journal import Journal
from bench.machine import machine, origin
from bench.options import PLAIN, PLAIN_ALL, BenchOptions
from bench.output import WIDTH, publish, result_file, say, table_console
from bench.plots import plot_all
from bench.prompts import SPEC_BENCH, load_set
from bench.report import print_report, summary_of, trial_content
from bench.runner import Configuration, Schedule, Trial, run_schedule
from bench.sections import sections_of
from bench.synthetic.crowds import crowds, print_crowds
from bench.synthetic.main import LABEL, Synthetic
from services.cluster.flags import complain
from services.cluster.fresh import recalled_tokens
from services.cluster.lifetime import unless_stopped
from services.cluster.local import Cluster, local_cluster
from services.cluster.progress import INTERRUPTED
from services.contract.errors import PacelineError as ServerError
from services.contract.errors import StartError
from services.runtime.affinity import available_cores
from services.runtime.serving import run

COLUMN = 26

FRESH_TRIALS = "each trial in a scope of its own: nothing cached, nothing learned"
SEEN_BEFORE = "text seen before: every prompt was answered once by each, all in one scope"

NOT_MEASURED = {"out", "summary", "resume", "repeats", "prompts", "prompt_set", "peers"}
"""Options that change no trial, or that a journal notes in other words."""


@dataclass
class Progress:
    """What a run has measured so far, and under which settings."""

    configurations: list[Configuration] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    journal: Journal | None = None

    def keep(self, trial: Trial) -> None:
        """One more."""
        self.trials.append(trial)
        if self.journal is not None:
            self.journal.add(trial)


def run_bench(options: BenchOptions) -> int:
    """Measure, print tables and write JSON and plots; the exit status.

    A run that is stopped prints what it has.
    """
    progress = Progress()
    try:
        schedule = _schedule(options)
        _take_up(options, schedule, progress)
        done = run(unless_stopped(_measure(options, schedule, progress)))
    except (ServerError, PacelineError) as error:
        _conclude(options, progress, complete=False)
        return complain("bench", error, status=1)
    _conclude(options, progress, complete=bool(done))
    return 0 if done else INTERRUPTED


def _schedule(options: BenchOptions) -> Schedule:
    if options.runs_no_model:
        return Synthetic.of(options).schedule
    options.check()
    prompts = load_set(options.prompts or SPEC_BENCH, options.prompt_set)
    if max(options.concurrency) > len(prompts):
        raise StartError(
            f"--concurrency: {max(options.concurrency)} at a time need as many prompts, "
            f"--set has {len(prompts)}"
        )
    made = Schedule(
        prompts,
        options.repeats,
        options.concurrency,
        options.sampling,
        options.seed,
        seen_before=options.seen_before,
    )
    if not options.peers.names:
        return made
    from bench.tokens import with_token_ids

    *prompts, warm_up = with_token_ids(options.target, [*prompts, made.warm_up])
    return replace(made, prompts=prompts, warm_up=warm_up)


def _take_up(options: BenchOptions, schedule: Schedule, progress: Progress) -> None:
    """Go on with what `--resume` holds."""
    if options.resume is None:
        return
    progress.journal = Journal(options.resume, journal_settings(options, schedule))
    progress.trials += progress.journal.trials
    if progress.trials:
        say(f"{len(progress.trials)} trials of {options.resume} are done already")


def journal_settings(options: BenchOptions, schedule: Schedule) -> dict[str, object]:
    """By flag, what trials of one journal have in common."""
    same = {name: value for name, value in asdict(options).items() if name not in NOT_MEASURED}
    texts = "\0".join(prompt.text for prompt in schedule.prompts)
    digest = hashlib.sha256(texts.encode()).hexdigest()[:12]
    return {
        **{f"--{name.replace('_', '-')}": value for name, value in same.items()},
        "--dtype": options.number_format,
        "--set": f"{options.prompt_set} ({digest})",
        "--peers": options.peers.names,
        "--peer-cores": options.peers.places,
        "--peer-dtype": options.peers.dtype,
        "number of cores": len(available_cores()),
    }


async def _measure(options: BenchOptions, schedule: Schedule, progress: Progress) -> bool:
    formats = {trial.configuration: trial.dtype for trial in progress.trials}
    async with (
        Synthetic.of(options).served(say)
        if options.runs_no_model
        else _servers(options, schedule, formats)
    ) as configurations:
        progress.configurations += configurations
        done = {trial.key for trial in progress.trials}
        await run_schedule(configurations, schedule, progress.keep, say, done)
    return True


@asynccontextmanager
async def _servers(
    options: BenchOptions, schedule: Schedule, formats: Mapping[str, str]
) -> AsyncIterator[list[Configuration]]:
    """Every configuration, served: each pacing by an orchestrator of its drafter's cluster.

    `formats`: number formats of peers that trials before were taken in.
    """
    async with AsyncExitStack() as stack:
        configurations: list[Configuration] = []
        for drafter, asked in options.clusters.items():
            cluster = await stack.enter_async_context(local_cluster(asked, say))
            if not configurations:
                own = cores_in_words(options.cores)["verifier"]
                pid = _orchestrators(cluster)[0]
                configurations.append(plain(options, PLAIN, cluster.address, own, pid))
            pids = _orchestrators(cluster)
            count = partial(recalled_tokens, cluster.workers)
            configurations += drafting(options, cluster.addresses, drafter, pids, count)
        if (alone := options.plain_all_cores) is not None:
            other = await stack.enter_async_context(local_cluster(alone, say))
            everything = f"verifier {len(available_cores())}"
            pid = _orchestrators(other)[0]
            configurations.append(plain(options, PLAIN_ALL, other.address, everything, pid))
        if options.peers.names:
            from bench.peers.served import served_peers

            peers = served_peers(options, [*schedule.prompts, schedule.warm_up], say, formats)
            configurations += await stack.enter_async_context(peers)
        yield configurations


def _orchestrators(cluster: Cluster) -> list[int]:
    """The process ids of a cluster's orchestrators, in the order of its pacings."""
    return [pid for name, pid in cluster.pids.items() if name.startswith("orchestrator")]


def _conclude(options: BenchOptions, progress: Progress, *, complete: bool) -> None:
    """Print, write and draw what there is."""
    if not progress.trials or not progress.configurations:
        return
    names = [one.name for one in progress.configurations]
    # Without a core for drafting, plain decoding has all cores already.
    all_cores = PLAIN_ALL if PLAIN_ALL in names else PLAIN
    pairs = () if options.runs_no_model else baselines(options)
    sections = sections_of(progress.trials, progress.configurations, pairs, PLAIN, all_cores)
    setting = _setting(options, progress.configurations, complete)
    brief = summary_of(sections, setting)
    console = table_console(max(WIDTH, COLUMN * (len(names) + 2)))
    if options.runs_no_model:
        found = list(crowds(sections, Synthetic.of(options).scenario.spec))
        print_crowds(console, found, setting, LABEL)
        brief["crowds"] = [asdict(one) for one in found]
    else:
        print_report(console, sections, setting)
    path = options.out or result_file(LABEL if options.runs_no_model else "bench")
    trials = [trial_content(one) for one in progress.trials]
    publish(brief, trials, path, options.summary, lambda: plot_all(sections, path))


def _setting(
    options: BenchOptions, configurations: Sequence[Configuration], complete: bool
) -> dict[str, object]:
    told = Synthetic.of(options).setting() if options.runs_no_model else _models(options)
    threads = {one.name: one.cores for one in configurations if one.cores}
    return {"complete": complete, **told, "threads": threads, "machine": machine(), **origin()}


def _models(options: BenchOptions) -> dict[str, object]:
    return {
        "scenario": SEEN_BEFORE if options.seen_before else FRESH_TRIALS,
        "target": options.target,
        "drafting": options.drafters or options.draft or options.method or "ngram",
        "engine": options.engine,
        "devices": [*(options.verifier_device or ("cpu",)), *options.drafter_device],
        "dtype": options.number_format,
        "draft_dtype": options.draft_dtype or "auto",
        "prompts": f"{options.prompt_set} of {(options.prompts or SPEC_BENCH).name}, first turns",
        "sampling": options.sampling,
        "speculation": options.speculation(""),
        "fixed_tokens": options.windows("fixed"),
        "repeats": options.repeats,
        "concurrency": options.concurrency,
    }
