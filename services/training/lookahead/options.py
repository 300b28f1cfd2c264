"""What `paceline train-lookahead` is asked to do."""

from __future__ import annotations

from pathlib import Path

from services.runtime.options import option, options
from services.training.distill.options import Write, WritingOptions


@options
class LookaheadOptions(WritingOptions):
    """The command line of a training of look-ahead embeddings."""

    write: Write = 100_000
    steps: int = option("Tokens drafted beyond the next one.", 4)
    texts: tuple[Path, ...] = option(
        "Folder of texts that the target wrote for an earlier run (texts/ of its work folder), in "
        "place of writing; repeatable.",
        (),
    )
    train: int = option("Rows seen in training: steps at places of a text.", 100_000)
    learning_rate: float = option(
        "AdamW's, at its highest, in spreads of the target's embeddings.", 0.05
    )
    batch_positions: int = option("Rows per step, about.", 256, ge=1)
