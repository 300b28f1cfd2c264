"""Settings of a verifier process: flags, else `PACELINE_<NAME>`, else the default."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from services.engine.machines import Machines
from services.runtime.settings import WorkerSettings


class VerifierSettings(WorkerSettings):
    """Run one verifier: it runs the target model and decides what is emitted."""

    target: str = Field(
        "",
        title="model and device",
        description="target model: Hugging Face id, folder with safetensors, .gguf file, "
        "or smollm2-135m-instruct",
    )
    batch_invariant: bool | None = Field(
        None,
        description="let the logits of a text depend on that text alone, to the bit, whatever runs "
        "beside it: equal texts in bfloat16, too, a little slower; left out: in all others on CPUs",
    )
    tensor_parallel: int = Field(
        1,
        ge=1,
        description="with --engine vllm: processes that the model is split over, each with a "
        "device of its own; 1 = this one alone",
    )
    nodes: int = Field(
        1,
        title="a model over several machines",
        ge=1,
        description="machines that the processes of --tensor-parallel are on, as many on each",
    )
    node: int = Field(
        0,
        ge=0,
        description="which of these machines this is: 0 serves; the others run their processes of "
        "the model, until machine 0 ends",
    )
    rank_address: str = Field(
        "",
        pattern=r"^(.+:[1-9]\d{0,4})?$",
        description="host:port by which the others reach machine 0, which listens at --host and "
        "this port until all are there",
    )
    rank_secret_file: Path | None = Field(
        None, description="file with a secret that the machines share"
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
        if self.batch_invariant and self.synthetic is not None:
            raise ValueError("batch_invariant: a synthetic engine computes nothing")
        self.check_engine()
        return self

    @model_validator(mode="after")
    def _ranks_on_every_machine(self) -> Self:
        if self.tensor_parallel % self.nodes:
            raise ValueError(f"nodes: {self.nodes} do not divide {self.tensor_parallel} processes")
        if self.node >= self.nodes:
            raise ValueError(f"node: {self.node} is none of {self.nodes}, which begin with 0")
        if self.nodes > 1 and not self.rank_address:
            raise ValueError("rank_address: several machines have to know where the first one is")
        if self.nodes > 1 and self.rank_secret_file is None:
            raise ValueError("rank_secret_file: several machines have to share a secret")
        return self

    def machines(self) -> Machines:
        """Where the processes of the model are."""
        if self.nodes == 1:
            return Machines()
        host, _, port = self.rank_address.rpartition(":")
        return Machines(
            self.nodes, self.node, host.strip("[]"), int(port), self.host, self.rank_secret_file
        )
