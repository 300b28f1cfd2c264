"""The flags of `paceline distill`; what they start is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

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


def distill(
    target: Annotated[
        str, typer.Option(help="The model to make a drafter for, as `paceline up` takes it.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new drafter.")],
    prompts: Prompts = None,
    openings: Openings = None,
    exclude: Exclude = None,
    layers: Annotated[
        str,
        typer.Option(
            metavar="A,B", help="The target's layers to begin with, as 0,1,28-29; see --num-layers."
        ),
    ] = "",
    num_layers: Annotated[
        int, typer.Option(min=1, help="Without --layers: the first and last ones, half each.")
    ] = 6,
    head_tokens: Annotated[int, typer.Option(help="Tokens the drafter can propose.")] = 8192,
    write: Write = 500_000,
    train: Annotated[
        int | None, typer.Option(help="Positions seen in training; left out: three times --write.")
    ] = None,
    temperatures: Temperatures = "0,0.7,1,1",
    prompt_tokens: PromptTokens = 384,
    answer_tokens: AnswerTokens = 192,
    batch: Batch = 64,
    dtype: WritingDtype = "bfloat16",
    storage: Annotated[
        Literal["bfloat16", "int8", "int4"], typer.Option(help="How the drafter is stored.")
    ] = "int8",
    learning_rate: Annotated[float, typer.Option(help="AdamW's, at its highest.")] = 3e-3,
    batch_positions: Annotated[int, typer.Option(min=1, help="Positions per step.")] = 768,
    seed: Annotated[int, typer.Option(help="The same seed gives the same drafter.")] = 0,
    threads: Threads = None,
    cpus: Cpus = "",
    device: Device = "auto",
    work: Work = None,
) -> None:
    """Make a small drafter for a target: the target writes, the drafter learns; resumable."""
    given = dict(locals())
    from services.console.distill import run_distill

    raise typer.Exit(run_distill(given))
