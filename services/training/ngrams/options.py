"""What `paceline learn-ngrams` is asked to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from services.contract.types import DraftTree
from services.engine.ngram_file import Lesson, NgramFile
from services.runtime.options import option, options
from services.training.distill.options import (
    AnswerTokens,
    Dtype,
    PromptTokens,
    Temperatures,
    Write,
    WritingOptions,
)

Verify = Callable[[Sequence[int], DraftTree], list[list[int]]]
"""What the target says is likeliest after a text, and after each node of a draft behind it."""
Fit = Callable[[Sequence[Lesson], NgramFile, Verify], dict[str, float]]
"""The weights of the sources, from texts and a file without weights."""


@options
class NgramOptions(WritingOptions):
    """The command line of the making of an n-gram file.

    `draft_base`: what the draft model was distilled from, if it was.
    """

    write: Write = 30_000
    temperatures: Temperatures = "0,0,0.7,1"  # type: ignore[assignment]
    prompt_tokens: PromptTokens = 96
    answer_tokens: AnswerTokens = 256
    dtype: Dtype = "float32"
    texts: tuple[Path, ...] = option("Text files whose laws are learned, too; repeatable.", ())
    draft: str | None = option(
        "The draft model that is to draft beside the file: what its word is worth then.", None
    )
    head: str | None = option(
        "The head that is to draft beside the file; its word gets weights of its own.", None
    )
    most_bytes: int = option("Most bytes of the file; what tells least goes.", 5_000_000, ge=1)
    draft_base: str | None = None
