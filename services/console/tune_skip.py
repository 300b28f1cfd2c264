"""`paceline tune-skip`: which sub-layers a target can skip, with progress and a clean stop."""

from __future__ import annotations

from typing import Any

from services.cluster.arguments import numbers_of, typed
from services.console.long_run import carry_out
from services.training.tuning.options import TuneOptions
from services.training.tuning.run import Result, tune


def run_tune_skip(given: dict[str, Any]) -> int:
    """Search a mask; the exit status (130 = stopped, and the same command goes on)."""
    return carry_out(
        "tune-skip",
        lambda: asked(given),
        tune,
        tell=_tell,
        kept=lambda options: options.journal_file,
        nothing="nothing was measured yet",
    )


def asked(given: dict[str, Any]) -> TuneOptions:
    """The options of a command line; raises StartError for a list that is none."""
    cpus = numbers_of("--cpus", given["cpus"])
    return TuneOptions(**{**given, "cpus": cpus, "command": typed()})


def _tell(options: TuneOptions, result: Result) -> None:
    figures = result.figures
    print(
        f"{options.out}: skips {result.mask}; {1 / figures.cost:.2f}x plain decoding in one "
        f"process, {figures.acceptance:.0%} of drafted tokens accepted; its search is "
        f"{options.plot_file}",
        flush=True,
    )
    if figures.cost >= 1:
        print("no mask that was measured pays on this machine", flush=True)
