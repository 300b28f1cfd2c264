"""The flags of `paceline distill`; what they start is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def distill(
    target: Annotated[
        str, typer.Option(help="The model to make a drafter for, as `paceline up` takes it.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new drafter.")],
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Prompts: one a line, or JSON lines with prompt, text or turns; "
            "left out: the target writes its own."
        ),
    ] = None,
    openings: Annotated[
        Path | None, typer.Option(help="Beginnings of the target's own prompts, one a line.")
    ] = None,
    exclude: Annotated[
        list[Path] | None,
        typer.Option(help="Prompts that must not be trained on; repeatable."),
    ] = None,
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
    write: Annotated[int, typer.Option(help="Laws (tokens) that the target writes.")] = 500_000,
    train: Annotated[
        int | None, typer.Option(help="Positions seen in training; left out: three times --write.")
    ] = None,
    temperatures: Annotated[
        str, typer.Option(metavar="A,B", help="Every answer is drawn at one of these.")
    ] = "0,0.7,1,1",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a prompt.")] = 384,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 192,
    batch: Annotated[int, typer.Option(min=1, help="Texts written side by side.")] = 64,
    dtype: Annotated[
        Literal["float32", "bfloat16"],
        typer.Option(help="Number format of the target while it writes."),
    ] = ("bfloat16"),
    storage: Annotated[
        Literal["bfloat16", "int8", "int4"], typer.Option(help="How the drafter is stored.")
    ] = "int8",
    learning_rate: Annotated[float, typer.Option(help="AdamW's, at its highest.")] = 3e-3,
    batch_positions: Annotated[int, typer.Option(min=1, help="Positions per step.")] = 768,
    seed: Annotated[int, typer.Option(help="The same seed gives the same drafter.")] = 0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads; left out: PyTorch decides.")
    ] = None,
    cpus: Annotated[str, typer.Option(metavar="A,B", help="Run on these cores only.")] = "",
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="Where; auto: a GPU if there is one.")
    ] = "auto",
    work: Annotated[
        Path | None,
        typer.Option(help="Folder of the unfinished run; left out: OUT with .work added."),
    ] = None,
) -> None:
    """Make a small drafter for a target: the target writes, the drafter learns; resumable."""
    given = dict(locals())
    from services.console.distill import run_distill

    raise typer.Exit(run_distill(given))
