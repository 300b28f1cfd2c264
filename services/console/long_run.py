"""A run that takes long: its progress is shown, a signal stops it, the same command goes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from services.cluster.flags import complain
from services.cluster.progress import INTERRUPTED, StopSign, reporting
from services.contract.errors import PacelineError
from services.training.reporting import Reporter, Stopped

Options = TypeVar("Options")
Result = TypeVar("Result")


def carry_out(
    name: str,
    options: Options,
    make: Callable[[Options, Reporter], Result],
    *,
    tell: Callable[[Options, Result], None],
    kept: Path,
    nothing: str,
) -> int:
    """Run one; the exit status (130 = stopped, and the same command goes on).

    `make` does the work, `tell` prints what came of it. A run that was stopped goes on from
    `kept`; where that is not there yet, `nothing` was done.
    """
    # What transformers has to say about a model's files is not for these commands' lines.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    stop = StopSign()
    try:
        with stop.watching(), reporting(stop) as reporter:
            result = make(options, reporter)
    except (Stopped, KeyboardInterrupt):
        return _stopped(name, kept, nothing)
    except PacelineError as error:
        return complain(name, error, status=1)
    tell(options, result)
    return 0


def _stopped(name: str, kept: Path, nothing: str) -> int:
    told = f"the same command goes on from {kept}" if kept.exists() else nothing
    return complain(name, Stopped(f"stopped; {told}"), status=INTERRUPTED)
