"""What `paceline distill` is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.common.engine.student import Storage


@dataclass(frozen=True, slots=True)
class DistillOptions:
    """The command line of a distillation.

    `layers` empty: the first and the last half of the target's stack, `num_layers`
    together. `write`: laws to write; `train`: positions to see, None: three times
    `write`. `batch`: texts written side by side; `batch_positions`: laws per step.
    `work` None: `out` with ".work" added. `command`: as it was typed, for the card.
    """

    target: str
    out: Path
    prompts: Path | None = None
    openings: Path | None = None
    exclude: tuple[Path, ...] = ()
    layers: tuple[int, ...] = ()
    num_layers: int = 6
    head_tokens: int = 8192
    write: int = 500_000
    train: int | None = None
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0, 1.0)
    prompt_tokens: int = 384
    answer_tokens: int = 192
    batch: int = 64
    dtype: str = "bfloat16"
    storage: Storage = "int8"
    learning_rate: float = 3e-3
    batch_positions: int = 768
    seed: int = 0
    threads: int | None = None
    cpus: tuple[int, ...] = ()
    device: str = "auto"
    work: Path | None = None
    command: str = ""

    @property
    def positions(self) -> int:
        """Positions to see in training."""
        return 3 * self.write if self.train is None else self.train

    @property
    def work_folder(self) -> Path:
        """Where an unfinished run is kept."""
        return self.work or self.out.with_name(self.out.name + ".work")
