"""What is asked of a training on the target's own texts: the writing, and `paceline distill`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.engine.native.student import Storage


@dataclass(frozen=True, slots=True)
class WritingOptions:
    """What a target writes to learn from, and where.

    `write`: distributions to write. `batch`: texts written side by side. `work` None: `out`
    with ".work" added. `command`: as it was typed, for the card.
    """

    target: str
    out: Path
    prompts: Path | None = None
    openings: Path | None = None
    exclude: tuple[Path, ...] = ()
    write: int = 500_000
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0, 1.0)
    prompt_tokens: int = 384
    answer_tokens: int = 192
    batch: int = 64
    dtype: str = "bfloat16"
    seed: int = 0
    threads: int | None = None
    cpus: tuple[int, ...] = ()
    device: str = "auto"
    work: Path | None = None
    command: str = ""

    @property
    def work_folder(self) -> Path:
        """Where an unfinished run is kept."""
        return self.work or self.out.with_name(self.out.name + ".work")


@dataclass(frozen=True, slots=True)
class DistillOptions(WritingOptions):
    """The command line of a distillation.

    `layers` empty: the first and the last half of the target's stack, `num_layers`
    together. `train`: positions to see, None: three times `write`. `batch_positions`:
    distributions per step.
    """

    layers: tuple[int, ...] = ()
    num_layers: int = 6
    head_tokens: int = 8192
    train: int | None = None
    storage: Storage = "int8"
    learning_rate: float = 3e-3
    batch_positions: int = 768

    @property
    def positions(self) -> int:
        """Positions to see in training."""
        return 3 * self.write if self.train is None else self.train
