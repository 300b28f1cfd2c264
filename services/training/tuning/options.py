"""What `paceline tune-skip` is asked to do."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from services.runtime.options import Numbers, option, options, typed

Placement = Literal["pool", "beside"]


@options
class TuneOptions:
    """The command line of a search. `command`: as it was typed, for the file."""

    target: str = option("The target model, as `paceline up` takes it.")
    out: Path = option("File of the new mask; its picture stands beside it.")
    prompts: Path | None = option(
        "Prompts: one a line, or JSON lines with prompt, text or turns; left out: a few of our "
        "own.",
        None,
    )
    num_prompts: int = option("How many of them.", 8)
    prompt_tokens: int = option("Most tokens of a prompt.", 256)
    tokens: int = option("Tokens written after each prompt per mask.", 32)
    trials: int = option("Masks to measure.", 200)
    max_draft: int = option("Most tokens of a draft.", 12)
    threshold: float = option("A token less likely than this ends a draft.", 0.6)
    placement: Placement = option(
        "Whose K/V of the output a draft starts from: that of a drafter in its own pool, or the "
        "verifier's, beside it.",
        "pool",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = option(
        "Number format of the target.", "float32"
    )
    device: str = option("Where the target runs.", "cpu")
    threads: int | None = option("Threads; left out: PyTorch decides.", None, ge=1)
    cpus: Numbers = option("Run on these cores only.", "")
    seed: int = option("The same seed proposes the same masks.", 0)
    journal: Path | None = option(
        "File of the unfinished search; left out: OUT with .journal added.", None
    )
    command: str = Field(default_factory=typed)

    @property
    def journal_file(self) -> Path:
        """Where an unfinished search is kept."""
        return self.journal or self.out.with_name(self.out.name + ".journal")

    @property
    def plot_file(self) -> Path:
        """The picture of the search."""
        return self.out.with_suffix(".svg")
