"""The flags of `paceline learn-ngrams`; what they start is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.console.training_flags import (
    AnswerTokens,
    Batch,
    Cpus,
    Device,
    Exclude,
    Openings,
    Prompts,
    PromptTokens,
    Temperatures,
    Threads,
    Work,
    Write,
    WritingDtype,
)


def learn_ngrams(
    target: Annotated[str, typer.Option(help="The model to learn, as `paceline up` takes it.")],
    out: Annotated[Path, typer.Option(help="The n-gram file; its card goes beside it.")],
    texts: Annotated[
        list[Path] | None,
        typer.Option(help="Text files whose laws are learned, too; repeatable."),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            help="The draft model that is to draft beside the file: what its word is worth then."
        ),
    ] = None,
    prompts: Prompts = None,
    openings: Openings = None,
    exclude: Exclude = None,
    write: Write = 30_000,
    most_bytes: Annotated[
        int, typer.Option(min=1, help="Most bytes of the file; what tells least goes.")
    ] = 5_000_000,
    temperatures: Temperatures = "0,0,0.7,1",
    prompt_tokens: PromptTokens = 96,
    answer_tokens: AnswerTokens = 256,
    batch: Batch = 64,
    dtype: WritingDtype = "float32",
    seed: Annotated[int, typer.Option(help="The same seed gives the same file.")] = 0,
    threads: Threads = None,
    cpus: Cpus = "",
    device: Device = "auto",
    work: Work = None,
) -> None:
    """Learn what a target says after a few tokens, for drafting without a model; resumable."""
    given = dict(locals())
    from services.console.ngrams import run_learn_ngrams

    raise typer.Exit(run_learn_ngrams(given))
