"""The flags of `paceline train-lookahead`; what they start is imported when it runs."""

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


def train_lookahead(
    target: Annotated[
        str, typer.Option(help="The model to train for, as `paceline up` takes it; it is frozen.")
    ],
    out: Annotated[Path, typer.Option(help="The new .safetensors file.")],
    steps: Annotated[int, typer.Option(help="Tokens drafted beyond the next one.")] = 4,
    texts: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder of texts that the target wrote for an earlier run (texts/ of its work "
            "folder), in place of writing; repeatable."
        ),
    ] = None,
    prompts: Prompts = None,
    openings: Openings = None,
    exclude: Exclude = None,
    write: Write = 100_000,
    train: Annotated[
        int, typer.Option(help="Rows seen in training: steps at places of a text.")
    ] = 100_000,
    temperatures: Temperatures = "0,0.7,1,1",
    prompt_tokens: PromptTokens = 384,
    answer_tokens: AnswerTokens = 192,
    batch: Batch = 64,
    dtype: WritingDtype = "bfloat16",
    learning_rate: Annotated[
        float, typer.Option(help="AdamW's, at its highest, in spreads of the target's embeddings.")
    ] = 0.05,
    batch_positions: Annotated[int, typer.Option(min=1, help="Rows per step, about.")] = 256,
    seed: Annotated[int, typer.Option(help="The same seed gives the same embeddings.")] = 0,
    threads: Threads = None,
    cpus: Cpus = "",
    device: Device = "auto",
    work: Work = None,
) -> None:
    """Train look-ahead embeddings (PaSS), with which a target drafts for itself; resumable."""
    given = dict(locals())
    from services.console.lookahead import run_train_lookahead

    raise typer.Exit(run_train_lookahead(given))
