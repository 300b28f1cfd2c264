"""The flags of `paceline tune-skip`; what they start is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from services.console.training_flags import (
    Cpus,
    Threads,
)


def tune_skip(
    target: Annotated[str, typer.Option(help="The target model, as `paceline up` takes it.")],
    out: Annotated[Path, typer.Option(help="File of the new mask; its picture stands beside it.")],
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Prompts: one a line, or JSON lines with prompt, text or turns; "
            "left out: a few of our own."
        ),
    ] = None,
    num_prompts: Annotated[int, typer.Option(help="How many of them.")] = 8,
    prompt_tokens: Annotated[int, typer.Option(help="Most tokens of a prompt.")] = 256,
    tokens: Annotated[int, typer.Option(help="Tokens written after each prompt per mask.")] = 32,
    trials: Annotated[int, typer.Option(help="Masks to measure.")] = 200,
    max_draft: Annotated[int, typer.Option(help="Most tokens of a draft.")] = 12,
    threshold: Annotated[
        float, typer.Option(help="A token less likely than this ends a draft.")
    ] = 0.6,
    placement: Annotated[
        Literal["pool", "beside"],
        typer.Option(
            help="Whose K/V of the output a draft starts from: that of a drafter in its own pool, "
            "or the verifier's, beside it."
        ),
    ] = "pool",
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option(help="Number format of the target.")
    ] = "float32",
    device: Annotated[str, typer.Option(help="Where the target runs.")] = "cpu",
    threads: Threads = None,
    cpus: Cpus = "",
    seed: Annotated[int, typer.Option(help="The same seed proposes the same masks.")] = 0,
    journal: Annotated[
        Path | None,
        typer.Option(help="File of the unfinished search; left out: OUT with .journal added."),
    ] = None,
) -> None:
    """Find sub-layers that a target can skip when it drafts for itself; resumable."""
    given = dict(locals())
    from services.console.tune_skip import run_tune_skip

    raise typer.Exit(run_tune_skip(given))
