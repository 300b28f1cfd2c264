"""Settings of a verifier process: flags, else `PACELINE_<NAME>`, else the default."""

from __future__ import annotations

import secrets
from typing import Self

from pydantic import Field, model_validator

from services.runtime.settings import WorkerSettings


class VerifierSettings(WorkerSettings):
    """Run one verifier: it runs the target model and decides what is emitted."""

    target: str = Field(
        "",
        title="model and device",
        description="target model: Hugging Face id, folder with safetensors, .gguf file, "
        "or smollm2-135m-instruct",
    )
    tensor_parallel: int = Field(
        1,
        ge=1,
        description="with --engine vllm: processes that the model is split over, each with a "
        "device of its own; 1 = this one alone",
    )
    prefix_cache_tokens: int | None = Field(
        None,
        title="K/V memory",
        ge=0,
        description="tokens of K/V that texts that ended may hold, for texts that begin as they "
        "do; left out: half of what fits; 0 = nothing is kept or shared",
    )
    max_step_tokens: int = Field(
        2048,
        title="steps",
        ge=1,
        description="rows of one forward: blocks first, prompts in what is left",
    )
    target_step_ms: float = Field(
        500.0, gt=0, description="milliseconds that prompts may make a forward take"
    )
    prefill_slowdown: float = Field(
        1.75,
        gt=1,
        description="how many times as long prompts may make a step that others decode in; "
        "more where fewer decode than wait for prompts",
    )
    gather_ms: float = Field(
        50.0,
        ge=0,
        description="most milliseconds that a step waits for sessions about to come back, "
        "where more of them in one step save more than that; 0 = none",
    )
    worker_id: str = Field(
        default_factory=lambda: f"verifier-{secrets.token_hex(4)}",
        min_length=1,
        description="name in the registry; left out: a random one",
    )

    @model_validator(mode="after")
    def _one_engine(self) -> Self:
        if not self.target and self.synthetic is None:
            raise ValueError("--target is needed (or PACELINE_TARGET)")
        if self.target and self.synthetic is not None:
            raise ValueError(f"synthetic: no model runs, and --target {self.target} is given")
        if self.synthetic is not None and self.engine != "native":
            raise ValueError(f"synthetic: no model runs, and --engine {self.engine} is given")
        if self.tensor_parallel > 1 and self.engine != "vllm":
            raise ValueError("tensor_parallel: only --engine vllm splits a model")
        self.check_execution()
        return self
