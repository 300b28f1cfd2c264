"""`paceline distill`: a small drafter from a target, with progress and a clean stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from services.cluster.arguments import fractions_of, numbers_of, typed
from services.console.long_run import carry_out
from services.training.distill.options import DistillOptions, WritingOptions
from services.training.distill.run import distill
from services.training.reporting import Reporter

Options = TypeVar("Options", bound=WritingOptions)


def run_distill(given: dict[str, Any]) -> int:
    """Make a drafter; the exit status (130 = stopped, and the same command goes on)."""
    return run_training("distill", lambda: asked(given), distill)


def run_training(
    name: str, ask: Callable[[], Options], make: Callable[[Options, Reporter], Path]
) -> int:
    """Carry out a training; `make` returns where its result is."""
    return carry_out(
        name,
        ask,
        make,
        tell=_tell,
        kept=lambda options: options.work_folder,
        nothing="nothing was written yet",
    )


def _tell(options: WritingOptions, result: Path) -> None:
    card = result / "README.md" if result.is_dir() else result.with_suffix(".md")
    print(f"{result} is ready, its card is {card};", flush=True)
    print(f"{options.work_folder} with texts and checkpoint is not needed any more", flush=True)


def asked(given: dict[str, Any]) -> DistillOptions:
    """The options of a command line; raises StartError for a list that is none."""
    lists = {
        "layers": numbers_of("--layers", given["layers"]),
        "cpus": numbers_of("--cpus", given["cpus"]),
        "temperatures": fractions_of("--temperatures", given["temperatures"]),
        "exclude": tuple(given["exclude"] or ()),
    }
    return DistillOptions(**{**given, **lists, "command": typed()})
