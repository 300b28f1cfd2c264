"""`paceline train-lookahead`: look-ahead embeddings of a target, with progress and a stop."""

from __future__ import annotations

from services.console.distill import run_training
from services.training.lookahead.options import LookaheadOptions
from services.training.lookahead.run import train_lookahead


def run_train_lookahead(options: LookaheadOptions) -> int:
    """Train embeddings; the exit status (130 = stopped, and the same command goes on)."""
    return run_training("train-lookahead", options, train_lookahead)
