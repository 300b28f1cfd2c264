"""Flags that the commands of long runs have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Prompts = Annotated[
    Path | None,
    typer.Option(
        help="Prompts: one a line, or JSON lines with prompt, text or turns; "
        "left out: the target writes its own."
    ),
]
Openings = Annotated[
    Path | None, typer.Option(help="Beginnings of the target's own prompts, one a line.")
]
Exclude = Annotated[
    list[Path] | None, typer.Option(help="Prompts that must not be trained on; repeatable.")
]
Write = Annotated[int, typer.Option(help="Laws (tokens) that the target writes.")]
Temperatures = Annotated[
    str, typer.Option(metavar="A,B", help="Every answer is drawn at one of these.")
]
PromptTokens = Annotated[int, typer.Option(min=1, help="Most tokens of a prompt.")]
AnswerTokens = Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")]
Batch = Annotated[int, typer.Option(min=1, help="Texts written side by side.")]
WritingDtype = Annotated[
    Literal["float32", "bfloat16"],
    typer.Option(help="Number format of the target while it writes."),
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads; left out: PyTorch decides.")]
Cpus = Annotated[str, typer.Option(metavar="A,B", help="Run on these cores only.")]
Device = Annotated[
    Literal["auto", "cpu", "cuda"], typer.Option(help="Where; auto: a GPU if there is one.")
]
Work = Annotated[
    Path | None,
    typer.Option(help="Folder of the unfinished run; left out: OUT with .work added."),
]
