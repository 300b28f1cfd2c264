"""`paceline distill`: a small drafter from a target, with progress and a clean stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from services.console.long_run import carry_out
from services.training.distill.options import DistillOptions, WritingOptions
from services.training.distill.run import distill
from services.training.eagle.run import train_head
from services.training.reporting import Reporter

Options = TypeVar("Options", bound=WritingOptions)


def run_distill(options: DistillOptions) -> int:
    """Make a drafter; the exit status (130 = stopped, and the same command goes on)."""
    make = train_head if options.kind == "eagle" else distill
    return run_training("distill", options, make)


def run_training(name: str, options: Options, make: Callable[[Options, Reporter], Path]) -> int:
    """Carry out a training; `make` returns where its result is."""
    kept = options.work_folder
    return carry_out(name, options, make, tell=_tell, kept=kept, nothing="nothing was written yet")


def _tell(options: WritingOptions, result: Path) -> None:
    card = result / "README.md" if result.is_dir() else result.with_suffix(".md")
    print(f"{result} is ready, its card is {card};", flush=True)
    print(f"{options.work_folder} with texts and checkpoint is not needed any more", flush=True)
