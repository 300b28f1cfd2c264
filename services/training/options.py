"""What is asked of `paceline train`, by kind."""

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
Placement = Literal["pool", "beside"]
Storage = Literal["bfloat16", "int8"]
_PROMPTS = "Prompts: one a line, or JSON lines with prompt, text or turns; left out: "


@options
class TrainOptions:
    """What every kind is asked. `command`: as it was typed, for the card."""

    target: str = option("The model to learn from, as `paceline up` takes it; it is frozen.")
    out: Path = option("The new file, or folder of a head; its card goes with it.")
    prompts: Path | None = option(f"{_PROMPTS}the target writes its own.", None)
    seed: int = option("The same seed gives the same result.", 0)
    threads: int | None = option("Threads; left out: PyTorch decides.", None, ge=1)
    cpus: Numbers = option("Run on these cores only.", "")
    command: str = Field(default_factory=typed)


@options
class WritingOptions(TrainOptions):
    """What a target writes to learn from, and where."""

    openings: Path | None = option("Beginnings of the target's own prompts, one a line.", None)
    exclude: tuple[Path, ...] = option("Prompts that must not be trained on; repeatable.", ())
    write: Write = 500_000
    temperatures: Temperatures = "0,0.7,1,1"  # type: ignore[assignment]
    prompt_tokens: PromptTokens = 384
    answer_tokens: AnswerTokens = 192
    batch: int = option("Texts written side by side.", 64, ge=1)
    dtype: Dtype = "bfloat16"
    device: Literal["auto", "cpu", "cuda"] = option("Where; auto: a GPU if there is one.", "auto")
    work: Path | None = option(
        "Folder of the unfinished run; left out: OUT with .work added.", None
    )

    @property
    def work_folder(self) -> Path:
        """Where an unfinished run is kept."""
        return self.work or self.out.with_name(self.out.name + ".work")


@options
class HeadOptions(WritingOptions):
    """The command line of `paceline train head`."""

    layers: Numbers = option(
        "Layers of the target whose input the head reads, as 0,1,28-29; left out: a low, a middle "
        "and a high one.",
        "",
    )
    head_tokens: int = option("Tokens the head can propose.", 8192)
    step_weights: Fractions = option("Weights of the draft steps it learns, one each.", "1,0.8,0.6")
    train: int | None = option("Positions seen in training; left out: three times --write.", None)
    storage: Storage = option("How the head is stored.", "int8")
    learning_rate: float = option("AdamW's, at its highest.", 2e-4)
    batch_positions: int = option("Positions per step.", 128, ge=1)

    @property
    def positions(self) -> int:
        """Positions to see in training."""
        return 3 * self.write if self.train is None else self.train


@options
class LookaheadOptions(WritingOptions):
    """The command line of `paceline train lookahead`."""

    write: Write = 100_000
    steps: int = option("Tokens drafted beyond the next one.", 4)
    texts: tuple[Path, ...] = option(
        "Folder of texts that the target wrote for an earlier run (texts/ of its work folder), in "
        "place of writing; repeatable.",
        (),
    )
    train: int = option("Rows seen in training: steps at places of a text.", 100_000)
    learning_rate: float = option(
        "AdamW's, at its highest, in spreads of the target's embeddings.", 0.05
    )
    batch_positions: int = option("Rows per step, about.", 256, ge=1)


@options
class NgramOptions(WritingOptions):
    """The command line of `paceline train ngrams`."""

    write: Write = 30_000
    temperatures: Temperatures = "0,0,0.7,1"  # type: ignore[assignment]
    prompt_tokens: PromptTokens = 96
    answer_tokens: AnswerTokens = 256
    dtype: Dtype = "float32"
    texts: tuple[Path, ...] = option("Text files whose laws are learned, too; repeatable.", ())
    draft: str | None = option(
        "The draft model that is to draft beside the file: what its word is worth then.", None
    )
    head: str | None = option(
        "The head that is to draft beside the file; its word gets weights of its own.", None
    )
    most_bytes: int = option("Most bytes of the file; what tells least goes.", 5_000_000, ge=1)


@options
class SkipMaskOptions(TrainOptions):
    """The command line of `paceline train skip-mask`."""

    prompts: Path | None = option(f"{_PROMPTS}a few of our own.", None)
    num_prompts: int = option("How many of them.", 8, ge=1)
    prompt_tokens: PromptTokens = 256
    tokens: int = option("Tokens written after each prompt per mask.", 32, ge=1)
    trials: int = option("Masks to measure.", 200, ge=3)
    max_draft: int = option("Most tokens of a draft.", 12, ge=1)
    threshold: float = option("A token less likely than this ends a draft.", 0.6, ge=0, le=1)
    placement: Placement = option(
        "Whose K/V of the output a draft starts from: that of a drafter in its own pool, or the "
        "verifier's, beside it.",
        "pool",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = option(
        "Number format of the target.", "float32"
    )
    device: str = option("Where the target runs.", "cpu")
    journal: Path | None = option(
        "File of the unfinished search; left out: OUT with .journal added.", None
    )

    @property
    def journal_file(self) -> Path:
        """Where an unfinished search is kept."""
        return self.journal or self.out.with_name(self.out.name + ".journal")
