"""Settings of a drafter process: flags, else `PACELINE_<NAME>`, else the default."""

from __future__ import annotations

import secrets
from typing import Self

from pydantic import Field, model_validator

from services.common.settings import WorkerSettings


class DrafterSettings(WorkerSettings):
    """Run one drafter: it proposes tokens for the verifier to check."""

    draft: str | None = Field(
        None,
        description="draft model of the method `model`: "
        "Hugging Face id, folder with safetensors, .gguf file, folder that `paceline distill` "
        "wrote, or smollm2-135m-instruct-draft",
    )
    draft_base: str | None = Field(
        None,
        description="model that a distilled draft model was made from, where that is not found "
        "by the name it had then",
    )
    method: str = Field(
        "",
        description="drafting methods, joined by commas, the default one first; "
        "left out: `model` with a draft model, else `ngram`",
    )
    step_tokens: int = Field(
        512, ge=1, description="prompt tokens that one step takes in beside drafting"
    )
    q_top: int = Field(
        64,
        ge=1,
        le=1024,
        description="tokens that a draft law is cut to before it is drawn from and sent "
        "(standard and block verification)",
    )
    max_window: int = Field(
        64, ge=1, description="most tokens drafted ahead of a session's committed text"
    )
    ngram_min: int = Field(2, ge=1, description="shortest n-gram that `ngram` looks up")
    ngram_max: int = Field(4, ge=1, description="longest n-gram that `ngram` looks up")
    worker_id: str = Field(
        default_factory=lambda: f"drafter-{secrets.token_hex(4)}",
        min_length=1,
        description="name in the registry; left out: a random one",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.ngram_min > self.ngram_max:
            raise ValueError(f"ngram_min {self.ngram_min} is above ngram_max {self.ngram_max}")
        if self.draft is None and "model" in self.method_names:
            raise ValueError("draft: the method model needs a draft model")
        if self.draft is None and self.draft_base is not None:
            raise ValueError(f"draft_base: {self.draft_base} is given without a draft model")
        if self.draft is not None and "model" not in self.method_names:
            raise ValueError(f"draft: {self.draft} is given, but method {self.method} needs none")
        return self

    @property
    def method_names(self) -> tuple[str, ...]:
        """The methods to serve, the default one first."""
        names = tuple(name.strip() for name in self.method.split(",") if name.strip())
        return names or (("model",) if self.draft is not None else ("ngram",))
