"""Settings of a verifier process: flags, else `PACELINE_<NAME>`, else the default."""

from __future__ import annotations

import secrets

from pydantic import Field

from services.common.settings import WorkerSettings


class VerifierSettings(WorkerSettings):
    """Run one verifier: it runs the target model and decides what is emitted."""

    target: str = Field(
        min_length=1,
        description="target model: Hugging Face id, folder with safetensors, .gguf file, "
        "or smollm2-135m-instruct",
    )
    max_step_tokens: int = Field(
        512, ge=1, description="rows of one forward: blocks first, prompts in what is left"
    )
    target_step_ms: float = Field(
        250.0, gt=0, description="milliseconds that prompts may make a forward take"
    )
    worker_id: str = Field(
        default_factory=lambda: f"verifier-{secrets.token_hex(4)}",
        min_length=1,
        description="name in the registry; left out: a random one",
    )
