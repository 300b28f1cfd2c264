"""Settings of a drafter process: flags, else `PACELINE_<NAME>`, else the default."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


class DrafterSettings(BaseSettings):
    """Run one drafter: it proposes tokens for the verifier to check."""

    model_config = SettingsConfigDict(env_prefix="PACELINE_", frozen=True, extra="ignore")

    draft: str | None = Field(
        None,
        description="draft model of the method `model`: "
        "Hugging Face id, folder with safetensors, or .gguf file",
    )
    method: str = Field(
        "",
        description="drafting methods, joined by commas, the default one first; "
        "left out: `model` with a draft model, else `ngram`",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="number format of the draft model"
    )
    device: str = Field("cpu", description="where the draft model runs")
    threads: int | None = Field(None, ge=1, description="threads of the draft model")
    cpus: Annotated[tuple[int, ...], NoDecode] = Field(
        (), description="run the draft model on these cores only"
    )
    cache_dir: Path | None = Field(None, description="folder for converted weights")
    kv_capacity_tokens: int | None = Field(
        None, ge=1, description="tokens of K/V that all sessions may hold together"
    )
    max_context: int | None = Field(None, ge=1, description="longest text of a session, in tokens")
    step_tokens: int = Field(
        512, ge=1, description="prompt tokens that one step takes in beside drafting"
    )
    max_window: int = Field(
        64, ge=1, description="most tokens drafted ahead of a session's committed text"
    )
    ngram_min: int = Field(2, ge=1, description="shortest n-gram that `ngram` looks up")
    ngram_max: int = Field(4, ge=1, description="longest n-gram that `ngram` looks up")
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(0, ge=0, le=65535, description="port to listen on, 0 = a free one")
    advertise: str = Field(
        "", description="host:port that others reach this worker by, if not the one it listens on"
    )
    redis: str | None = Field(None, description="URL of the Redis with the worker registry")
    worker_id: str = Field(
        default_factory=lambda: f"drafter-{secrets.token_hex(4)}",
        min_length=1,
        description="name in the registry; left out: a random one",
    )
    ready_file: Path | None = Field(
        None, description="file that gets the address as one line once this process serves"
    )
    grace: float = Field(
        10.0, ge=0, description="seconds that sessions get to move when the process is stopped"
    )
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="port of /metrics, 0 = a free one; left out: none"
    )
    metrics_host: str = Field("127.0.0.1", description="address that /metrics listens on")
    insecure: bool = Field(False, description="serve without TLS on other than loopback")
    tls_cert: Path | None = Field(None, description="PEM file of this server's certificate")
    tls_key: Path | None = Field(None, description="PEM file of its private key")
    tls_ca: Path | None = Field(None, description="PEM file of the CA that clients must be of")

    @field_validator("cpus", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [part for part in value.split(",") if part] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.ngram_min > self.ngram_max:
            raise ValueError(f"ngram_min {self.ngram_min} is above ngram_max {self.ngram_max}")
        if self.draft is None and "model" in self.method_names:
            raise ValueError("draft: the method model needs a draft model")
        if self.draft is not None and "model" not in self.method_names:
            raise ValueError(f"draft: {self.draft} is given, but method {self.method} needs none")
        return self

    @property
    def method_names(self) -> tuple[str, ...]:
        """The methods to serve, the default one first."""
        names = tuple(name.strip() for name in self.method.split(",") if name.strip())
        return names or (("model",) if self.draft is not None else ("ngram",))
