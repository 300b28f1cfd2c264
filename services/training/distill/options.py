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


Kind = Literal["student", "eagle"]

#: By kind of drafter: AdamW's rate at its highest, and positions per step.
_RATES: dict[Kind, float] = {"student": 3e-3, "eagle": 2e-4}
_BATCHES: dict[Kind, int] = {"student": 768, "eagle": 128}


@options
class DistillOptions(WritingOptions):
    """The command line of a distillation."""

    kind: Kind = option(
        "student: some of the target's layers; eagle: an EAGLE-3 head on its states.", "student"
    )
    layers: Numbers = option(
        "Of the target, as 0,1,28-29. A student begins with them, see --num-layers; a head reads "
        "what goes into them (left out: a low, a middle and a high one).",
        "",
    )
    num_layers: int = option("Without --layers: the first and last ones, half each.", 6, ge=1)
    head_tokens: int = option("Tokens the drafter can propose.", 8192)
    step_weights: Fractions = option(
        "Weights of the draft steps that a head learns, one for each.", "1,0.8,0.6"
    )
    train: int | None = option("Positions seen in training; left out: three times --write.", None)
    storage: Literal["bfloat16", "int8", "int4"] = option("How the drafter is stored.", "int8")
    learning_rate: float | None = option(
        "AdamW's, at its highest; left out: 0.003, of a head 0.0002.", None
    )
    batch_positions: int | None = option(
        "Positions per step; left out: 768, of a head 128.", None, ge=1
    )

    @property
    def positions(self) -> int:
        """Positions to see in training."""
        return 3 * self.write if self.train is None else self.train

    @property
    def rate(self) -> float:
        """The learning rate at its highest."""
        return _RATES[self.kind] if self.learning_rate is None else self.learning_rate

    @property
    def step_positions(self) -> int:
        """Positions per step."""
        return self.batch_positions or _BATCHES[self.kind]
