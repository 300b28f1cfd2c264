"""Settings that processes share: flags, else `PACELINE_<NAME>`, else the default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from services.common.serving import ServingOptions, TlsFiles


class ServingSettings(BaseSettings):
    """How a process listens and tells others that it does."""

    model_config = SettingsConfigDict(env_prefix="PACELINE_", frozen=True, extra="ignore")

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(0, ge=0, le=65535, description="port to listen on, 0 = a free one")
    ready_file: Path | None = Field(
        None, description="file that gets the address as one line once this process serves"
    )
    grace: float = Field(
        10.0, ge=0, description="seconds that open sessions get when the process is stopped"
    )
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="port of /metrics, 0 = a free one; left out: none"
    )
    metrics_host: str = Field("127.0.0.1", description="address that /metrics listens on")
    reflection: bool = Field(False, description="serve gRPC reflection")
    insecure: bool = Field(False, description="serve without TLS on other than loopback")
    tls_cert: Path | None = Field(None, description="PEM file of this server's certificate")
    tls_key: Path | None = Field(None, description="PEM file of its private key")
    tls_ca: Path | None = Field(None, description="PEM file of the CA that clients must be of")

    def serving_options(self) -> ServingOptions:
        """The same, as what servers take."""
        tls = TlsFiles(self.tls_cert, self.tls_key, self.tls_ca)
        return ServingOptions(
            address=f"{self.host}:{self.port}",
            insecure=self.insecure,
            tls=tls if self.tls_cert is not None else None,
            reflection=self.reflection,
            grace=self.grace,
        )


class WorkerSettings(ServingSettings):
    """What every worker has: its place in the registry, and how its model runs."""

    worker_id: str = Field(min_length=1, description="name in the registry")
    redis: str | None = Field(None, description="URL of the Redis with the worker registry")
    advertise: str = Field(
        "", description="host:port that others reach this worker by, if not the one it listens on"
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="number format of the model"
    )
    device: str = Field("cpu", description="where the model runs")
    threads: int | None = Field(None, ge=1, description="threads of the model")
    cpus: Annotated[tuple[int, ...], NoDecode] = Field(
        (), description="run the model on these cores only, joined by commas"
    )
    cache_dir: Path | None = Field(None, description="folder for converted weights")
    kv_capacity_tokens: int | None = Field(
        None, ge=1, description="tokens of K/V that all sessions may hold together"
    )
    max_context: int | None = Field(None, ge=1, description="longest text of a session, in tokens")

    @field_validator("cpus", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [part for part in value.split(",") if part] if isinstance(value, str) else value
