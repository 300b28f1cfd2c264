"""What `paceline learn-ngrams` is asked to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.contract.types import DraftTree
from services.engine.ngram_file import Lesson, NgramFile
from services.training.distill.options import WritingOptions

Verify = Callable[[Sequence[int], DraftTree], list[list[int]]]
"""What the target says is likeliest after a text, and after each node of a draft behind it."""
Fit = Callable[[Sequence[Lesson], NgramFile, Verify], dict[str, float]]
"""The weights of the sources, from texts and a file without weights."""


@dataclass(frozen=True, slots=True)
class NgramOptions(WritingOptions):
    """The command line of the making of an n-gram file.

    `out`: the file. `texts`: text files to learn from, too. `most_bytes`: of the file.
    `draft`: a draft model that is to draft beside the file, `draft_base`: what it was distilled
    from, if it was.
    """

    write: int = 30_000
    temperatures: tuple[float, ...] = (0.0, 0.0, 0.7, 1.0)
    prompt_tokens: int = 96
    answer_tokens: int = 256
    dtype: str = "float32"
    texts: tuple[Path, ...] = ()
    most_bytes: int = 5_000_000
    draft: str | None = None
    draft_base: str | None = None
