"""`paceline learn-ngrams`: the n-gram file of a target, with progress and a clean stop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from services.cluster.models import is_distilled
from services.console.distill import run_training
from services.training.ngrams.fitting import fit
from services.training.ngrams.options import NgramOptions
from services.training.ngrams.run import learn_ngrams
from services.training.reporting import Reporter


def run_learn_ngrams(options: NgramOptions) -> int:
    """Make the file; the exit status (130 = stopped, and the same command goes on)."""
    if options.draft is not None and is_distilled(options.draft):
        options = replace(options, draft_base=options.target)
    return run_training("learn-ngrams", options, _learn)


def _learn(options: NgramOptions, reporter: Reporter) -> Path:
    return learn_ngrams(options, reporter, fit)
