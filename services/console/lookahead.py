"""`paceline train-lookahead`: look-ahead embeddings of a target, with progress and a stop."""

from __future__ import annotations

from typing import Any

from services.cluster.arguments import fractions_of, numbers_of, typed
from services.console.distill import run_training
from services.training.lookahead.options import LookaheadOptions
from services.training.lookahead.run import train_lookahead


def run_train_lookahead(given: dict[str, Any]) -> int:
    """Train embeddings; the exit status (130 = stopped, and the same command goes on)."""
    return run_training("train-lookahead", lambda: asked(given), train_lookahead)


def asked(given: dict[str, Any]) -> LookaheadOptions:
    """The options of a command line; raises StartError for a list that is none."""
    lists = {
        "cpus": numbers_of("--cpus", given["cpus"]),
        "temperatures": fractions_of("--temperatures", given["temperatures"]),
        "exclude": tuple(given["exclude"] or ()),
        "texts": tuple(given["texts"] or ()),
    }
    return LookaheadOptions(**{**given, **lists, "command": typed()})
