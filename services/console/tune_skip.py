"""`paceline tune-skip`: which sub-layers a target can skip, with progress and a clean stop."""

from __future__ import annotations

from services.console.long_run import carry_out
from services.training.tuning.options import TuneOptions
from services.training.tuning.run import Result, tune


def run_tune_skip(options: TuneOptions) -> int:
    """Search a mask; the exit status (130 = stopped, and the same command goes on)."""
    kept = options.journal_file
    nothing = "nothing was measured yet"
    return carry_out("tune-skip", options, tune, tell=_tell, kept=kept, nothing=nothing)


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
