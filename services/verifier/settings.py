"""Settings of a verifier process: flags, else `PACELINE_<NAME>`, else the default."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


class VerifierSettings(BaseSettings):
    """Run one verifier: it runs the target model and decides what is emitted."""

    model_config = SettingsConfigDict(env_prefix="PACELINE_", frozen=True, extra="ignore")

    target: str = Field(
        min_length=1,
        description="target model: Hugging Face id, folder with safetensors, .gguf file, "
        "or smollm2-135m-instruct",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="number format of the target model"
    )
    device: str = Field("cpu", description="where the target model runs")
    threads: int | None = Field(None, ge=1, description="threads of the target model")
    cpus: Annotated[tuple[int, ...], NoDecode] = Field(
        (), description="run the target model on these cores only"
    )
    cache_dir: Path | None = Field(None, description="folder for converted weights")
    kv_capacity_tokens: int | None = Field(
        None, ge=1, description="tokens of K/V that all sessions may hold together"
    )
    max_context: int | None = Field(None, ge=1, description="longest text of a session, in tokens")
    max_step_tokens: int = Field(
        512, ge=1, description="rows of one forward: blocks first, prompts in what is left"
    )
    target_step_ms: float = Field(
        250.0, gt=0, description="milliseconds that prompts may make a forward take"
    )
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(0, ge=0, le=65535, description="port to listen on, 0 = a free one")
    advertise: str = Field(
        "", description="host:port that others reach this worker by, if not the one it listens on"
    )
    redis: str | None = Field(None, description="URL of the Redis with the worker registry")
    worker_id: str = Field(
        default_factory=lambda: f"verifier-{secrets.token_hex(4)}",
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
