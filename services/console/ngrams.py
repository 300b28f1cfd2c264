"""`paceline learn-ngrams`: the n-gram file of a target, with progress and a clean stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from services.cluster.arguments import fractions_of, numbers_of, typed
from services.cluster.models import is_distilled
from services.console.distill import run_training
from services.training.ngrams.fitting import fit
from services.training.ngrams.options import NgramOptions
from services.training.ngrams.run import learn_ngrams
from services.training.reporting import Reporter


def run_learn_ngrams(given: dict[str, Any]) -> int:
    """Make the file; the exit status (130 = stopped, and the same command goes on)."""
    return run_training("learn-ngrams", lambda: asked(given), _learn)


def _learn(options: NgramOptions, reporter: Reporter) -> Path:
    return learn_ngrams(options, reporter, fit)


def asked(given: dict[str, Any]) -> NgramOptions:
    """The options of a command line; raises StartError for a list that is none."""
    lists = {
        "cpus": numbers_of("--cpus", given["cpus"]),
        "temperatures": fractions_of("--temperatures", given["temperatures"]),
        "exclude": tuple(given["exclude"] or ()),
        "texts": tuple(given["texts"] or ()),
    }
    draft = given["draft"]
    base = given["target"] if draft is not None and is_distilled(draft) else None
    return NgramOptions(**{**given, **lists, "draft_base": base, "command": typed()})
