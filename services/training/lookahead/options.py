"""What `paceline train-lookahead` is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.training.distill.options import WritingOptions


@dataclass(frozen=True, slots=True)
class LookaheadOptions(WritingOptions):
    """The command line of a training of look-ahead embeddings.

    `out`: the file. `steps`: how many embeddings. `texts`: folders of texts that the
    target wrote for an earlier run, in place of writing. `train`: rows (steps at
    places) to see. `learning_rate`: in units of the spread of the target's embeddings.
    `batch_positions`: rows per step of the optimiser, about.
    """

    write: int = 100_000
    steps: int = 4
    texts: tuple[Path, ...] = ()
    train: int = 100_000
    learning_rate: float = 0.05
    batch_positions: int = 256
