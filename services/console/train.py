"""`paceline train KIND`: what is learned of a target, with progress and a clean stop."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from services.cluster.flags import complain
from services.cluster.progress import INTERRUPTED, StopSign, reporting
from services.contract.errors import PacelineError
from services.training.options import (
    HeadOptions,
    LookaheadOptions,
    NgramOptions,
    SkipMaskOptions,
    WritingOptions,
)
from services.training.reporting import Reporter, Stopped

Options = TypeVar("Options", bound=WritingOptions)
Result = TypeVar("Result")


def run_train_ngrams(options: NgramOptions) -> int:
    """Make the file; the exit status (130 = stopped, and the same command goes on)."""
    from services.training.ngrams.train import train_ngrams

    return _written("train ngrams", options, train_ngrams)


def run_train_head(options: HeadOptions) -> int:
    """Make a head; the exit status."""
    from services.training.head.train import train_head

    return _written("train head", options, train_head)


def run_train_lookahead(options: LookaheadOptions) -> int:
    """Train embeddings; the exit status."""
    from services.training.lookahead.train import train_lookahead

    return _written("train lookahead", options, train_lookahead)


def run_train_skip_mask(options: SkipMaskOptions) -> int:
    """Search a mask; the exit status."""
    from services.training.skip_mask.train import Result as Found
    from services.training.skip_mask.train import train_skip_mask

    def tell(found: Found) -> None:
        figures, picture = found.figures, options.out.with_suffix(".svg")
        print(
            f"{options.out}: skips {found.mask}; {1 / figures.cost:.2f}x plain decoding in one "
            f"process, {figures.acceptance:.0%} of drafted tokens accepted; its search is "
            f"{picture}",
            flush=True,
        )
        if figures.cost >= 1:
            print("no mask that was measured pays on this machine", flush=True)

    kept, nothing = options.journal_file, "nothing was measured yet"
    return _carried_out(
        "train skip-mask", lambda told: train_skip_mask(options, told), tell, kept, nothing
    )


def _written(name: str, options: Options, make: Callable[[Options, Reporter], Path]) -> int:
    """A training on what the target writes; `make` returns where its result is."""

    def tell(result: Path) -> None:
        card = result / "README.md" if result.is_dir() else result.with_suffix(".md")
        print(f"{result} is ready, its card is {card};", flush=True)
        print(f"{options.work_folder} with texts and checkpoint is not needed any more", flush=True)

    kept, nothing = options.work_folder, "nothing was written yet"
    return _carried_out(name, lambda reporter: make(options, reporter), tell, kept, nothing)


def _carried_out(
    name: str,
    make: Callable[[Reporter], Result],
    tell: Callable[[Result], None],
    kept: Path,
    nothing: str,
) -> int:
    """Run one; the exit status.

    `make` does the work, `tell` prints what came of it. A run that was stopped goes on from
    `kept`; where that is not there yet, `nothing` was done.
    """
    # What transformers has to say about a model's files is not for these commands' lines.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    stop = StopSign()
    try:
        with stop.watching(), reporting(stop) as reporter:
            result = make(reporter)
    except (Stopped, KeyboardInterrupt):
        told = f"the same command goes on from {kept}" if kept.exists() else nothing
        return complain(name, Stopped(f"stopped; {told}"), status=INTERRUPTED)
    except PacelineError as error:
        return complain(name, error, status=1)
    tell(result)
    return 0
