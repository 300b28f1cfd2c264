"""What is asked of a training on the target's own texts: the writing, and `paceline distill`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from services.runtime.options import Fractions, Numbers, option, options, typed

Write = Annotated[int, option("Laws (tokens) that the target writes.")]
Temperatures = Annotated[Fractions, option("Every answer is drawn at one of these.")]
PromptTokens = Annotated[int, option("Most tokens of a prompt.", ge=1)]
AnswerTokens = Annotated[int, option("Most tokens of an answer.", ge=1)]
Dtype = Annotated[
    Literal["float32", "bfloat16"], option("Number format of the target while it writes.")
]


@options
class WritingOptions:
    """What a target writes to learn from, and where. `command`: as it was typed, for the card."""

    target: str = option("The model to learn from, as `paceline up` takes it; it is frozen.")
    out: Path = option("The new file, or folder of a drafter; its card goes with it.")
    prompts: Path | None = option(
        "Prompts: one a line, or JSON lines with prompt, text or turns; left out: the target "
        "writes its own.",
        None,
    )
    openings: Path | None = option("Beginnings of the target's own prompts, one a line.", None)
    exclude: tuple[Path, ...] = option("Prompts that must not be trained on; repeatable.", ())
    write: Write = 500_000
    temperatures: Temperatures = "0,0.7,1,1"  # type: ignore[assignment]
    prompt_tokens: PromptTokens = 384
    answer_tokens: AnswerTokens = 192
    batch: int = option("Texts written side by side.", 64, ge=1)
    dtype: Dtype = "bfloat16"
    seed: int = option("The same seed gives the same result.", 0)
    threads: int | None = option("Threads; left out: PyTorch decides.", None, ge=1)
    cpus: Numbers = option("Run on these cores only.", "")
    device: Literal["auto", "cpu", "cuda"] = option("Where; auto: a GPU if there is one.", "auto")
    work: Path | None = option(
        "Folder of the unfinished run; left out: OUT with .work added.", None
    )
    command: str = Field(default_factory=typed)

    @property
    def work_folder(self) -> Path:
        """Where an unfinished run is kept."""
        return self.work or self.out.with_name(self.out.name + ".work")


@options
class DistillOptions(WritingOptions):
    """The command line of a distillation."""

    layers: Numbers = option(
        "The target's layers to begin with, as 0,1,28-29; see --num-layers.", ""
    )
    num_layers: int = option("Without --layers: the first and last ones, half each.", 6, ge=1)
    head_tokens: int = option("Tokens the drafter can propose.", 8192)
    train: int | None = option("Positions seen in training; left out: three times --write.", None)
    storage: Literal["bfloat16", "int8", "int4"] = option("How the drafter is stored.", "int8")
    learning_rate: float = option("AdamW's, at its highest.", 3e-3)
    batch_positions: int = option("Positions per step.", 768, ge=1)

    @property
    def positions(self) -> int:
        """Positions to see in training."""
        return 3 * self.write if self.train is None else self.train
