"""What `paceline tune-skip` is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Placement = Literal["pool", "beside"]


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """The command line of a search.

    `prompts` None: a few of our own. `tokens`: written per prompt and trial;
    `max_draft`: K_max; `threshold`: the exit threshold, fixed. `placement`: whose K/V
    of the output a draft starts from, the skipping model's own (a drafter in its own
    pool) or the whole model's (beside the verifier). `journal` None: `out` with
    ".journal" added. `command`: as it was typed, for the file.
    """

    target: str
    out: Path
    prompts: Path | None = None
    num_prompts: int = 8
    prompt_tokens: int = 256
    tokens: int = 32
    trials: int = 200
    max_draft: int = 12
    threshold: float = 0.6
    placement: Placement = "pool"
    dtype: str = "float32"
    device: str = "cpu"
    threads: int | None = None
    cpus: tuple[int, ...] = ()
    seed: int = 0
    journal: Path | None = None
    command: str = ""

    @property
    def journal_file(self) -> Path:
        """Where an unfinished search is kept."""
        return self.journal or self.out.with_name(self.out.name + ".journal")

    @property
    def plot_file(self) -> Path:
        """The picture of the search."""
        return self.out.with_suffix(".svg")
