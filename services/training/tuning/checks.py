"""Everything that can be refused before any work, one line each."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.contract.errors import StartError
from services.engine.checkpoint.files import locate, weights_digest
from services.engine.native.student import is_draft
from services.training.prompts import read_prompts
from services.training.tuning.options import TuneOptions
from services.training.tuning.prompts import PROMPTS

#: Options that decide what a trial measures. The others change how many there are.
_DECIDING = (
    "num_prompts",
    "prompt_tokens",
    "tokens",
    "max_draft",
    "threshold",
    "placement",
    "dtype",
    "device",
    "seed",
)
_LEAST_TRIALS = 3


@dataclass(frozen=True, slots=True)
class Job:
    """A search that passed all checks.

    `weights`: the digest of the target's. `plan`: what decides what is measured.
    """

    options: TuneOptions
    prompts: tuple[str, ...]
    weights: str
    plan: Mapping[str, Any]


def check(options: TuneOptions) -> Job:
    """The job that the options describe; StartError, one line, for what cannot be done."""
    _check_packages()
    _check_places(options)
    _check_amounts(options)
    prompts = _prompts(options)
    if is_draft(locate(options.target)):
        raise StartError(f"--target: {options.target} is a drafter; a target has all its layers")
    weights = weights_digest(options.target)
    plan = {name: getattr(options, name) for name in _DECIDING}
    plan |= {"weights of the target": weights[:16], "content of the prompts": _digest(prompts)}
    _require_plan(options.journal_file, plan)
    return Job(options, prompts, weights, plan)


def _check_packages() -> None:
    for package in ("optuna", "matplotlib"):
        if importlib.util.find_spec(package) is None:
            raise StartError(f"{package} is needed for the search, and is not installed")


def _check_places(options: TuneOptions) -> None:
    if options.out.exists():
        raise StartError(f"--out: {options.out} exists already")
    for option, path in (("--out", options.out), ("--journal", options.journal_file)):
        folder = path.absolute().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise StartError(f"{option}: {folder} is no folder that can be written")


def _check_amounts(options: TuneOptions) -> None:
    least = {"trials": _LEAST_TRIALS, "num_prompts": 1, "prompt_tokens": 1, "tokens": 1}
    for name, smallest in (least | {"max_draft": 1}).items():
        if (value := getattr(options, name)) < smallest:
            flag = name.replace("_", "-")
            raise StartError(f"--{flag}: {value} is not allowed; allowed is {smallest} or more")
    if not 0 <= options.threshold <= 1:
        raise StartError(f"--threshold: {options.threshold} is not allowed; allowed is 0..1")


def _prompts(options: TuneOptions) -> tuple[str, ...]:
    if options.prompts is None:
        return PROMPTS[: options.num_prompts]
    found = read_prompts(options.prompts)
    return tuple(prompt.text for prompt in found[: options.num_prompts])


def _digest(prompts: tuple[str, ...]) -> str:
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16]


def _require_plan(journal: Path, plan: Mapping[str, Any]) -> None:
    # optuna is an extra: it is imported once it is known to be there.
    from services.training.tuning.search import require_plan

    require_plan(journal, plan)
