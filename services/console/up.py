"""`paceline up`: a whole local cluster, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import replace
from pathlib import Path

from services.cluster.flags import complain
from services.cluster.lifetime import unless_stopped
from services.cluster.local import local_cluster
from services.cluster.specs import ClusterOptions
from services.contract.errors import PacelineError
from services.engine.start import AUTO
from services.runtime.atomic_file import write_line
from services.runtime.options import option, options


@options
class UpOptions(ClusterOptions):
    """A cluster, and who is told that it serves."""

    port: int = option("0 picks a free one.", 50051, variable=True, ge=0, le=65535)
    ready_file: Path | None = option("Gets the address as one line when the cluster serves.", None)
    pacing: str = option(
        "When to verify: adaptive, matched, eager or fixed.", "", section="Drafting", variable=True
    )


def run_up(options: UpOptions) -> int:
    """Serve until told to stop; the exit status (1 = it could not start)."""
    try:
        options.check()
        served = replace(options, pacings=(options.pacing,))
        return asyncio.run(_until_stopped(served, options.ready_file))
    except PacelineError as error:
        return complain("up", error, status=1)


async def _until_stopped(options: ClusterOptions, ready_file: Path | None) -> int:
    try:
        await unless_stopped(_serve(options, ready_file))
    finally:
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)  # noqa: ASYNC240 - nothing else runs any more
    say("stopped")
    return 0


async def _serve(options: ClusterOptions, ready_file: Path | None) -> None:
    began = time.monotonic()
    say(f"starting {describe(options)}")
    async with local_cluster(options, say) as cluster:
        say(f"logs are in {cluster.logs}")
        took = time.monotonic() - began
        print(f"serving on {cluster.address} after {took:.1f} s; Ctrl-C stops it", flush=True)
        if ready_file is not None:
            write_line(ready_file, cluster.address)
        try:
            await asyncio.Event().wait()
        finally:
            say("stopping")


def describe(options: ClusterOptions) -> str:
    """The cluster in one line."""
    if options.synthetic is not None:
        verifiers, drafters = (
            _count(options.verifiers, "synthetic verifier"),
            _count(options.drafters, "synthetic drafter"),
        )
        return f"{verifiers}, {drafters}: no model runs, times are those of {options.synthetic}"
    model = "ngram,eagle" if options.drafts_with_a_head else "model"
    given = {model: options.draft, "lookahead": options.lookahead}
    method = options.method or next((name for name, value in given.items() if value), "ngram")
    draft = f" ({options.draft})" if options.draft else ""
    verifiers = _count(options.verifiers, "verifier")
    told = options.number_format_told
    form = "the faster number format" if told == AUTO else told
    served = f"{verifiers} of {options.target} in {form}"
    if not options.apart:
        return f"{served}, drafting by {method}{draft}, too"
    return f"{served}, {_count(options.drafters, f'{method} drafter')}{draft}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def say(line: str) -> None:
    """One line for the person who started it, apart from what scripts read on stdout."""
    print(f"paceline up: {line}", file=sys.stderr, flush=True)
