"""Settings that processes share: flags, else `PACELINE_<NAME>`, else the default."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import Field

from services.runtime.options import Numbers, Settings
from services.runtime.registry import MOST_ZONE
from services.runtime.serving import (
    ClusterToken,
    Dialing,
    ServingOptions,
    TlsFiles,
    host_port,
    tls_contexts,
)


class ServingSettings(Settings):
    """How a process listens and tells others that it does."""

    host: str = Field("127.0.0.1", title="where it listens", description="address to listen on")
    port: int = Field(0, ge=0, le=65535, description="port to listen on, 0 = a free one")
    ready_file: Path | None = Field(
        None, description="file that gets the address as one line once this process serves"
    )
    grace: float = Field(
        10.0, ge=0, description="seconds that open sessions get when the process is stopped"
    )
    zone: str = Field(
        "",
        max_length=MOST_ZONE,
        description="availability zone, of which orchestrators prefer the workers where they take "
        "a subset; left out: not known",
    )
    protocol: int = Field(
        2,
        ge=1,
        le=2,
        description="what orchestrators and workers speak with each other, all of a cluster the "
        "same; 1 is going",
    )
    reflection: bool = Field(False, description="serve gRPC reflection")
    insecure: bool = Field(
        False,
        title="TLS and who may call",
        description="allow plaintext, and anybody, on other than loopback",
    )
    tls_cert: Path | None = Field(None, description="PEM file of this server's certificate")
    tls_key: Path | None = Field(None, description="PEM file of its private key")
    tls_ca: Path | None = Field(None, description="PEM file of the CA that clients must be of")
    cluster_token_file: Path | None = Field(
        None,
        description="file with the secret of this cluster, by which workers know orchestrators; "
        "one a line: the first is sent, each is good",
    )
    metrics_port: int | None = Field(
        None,
        title="metrics and health",
        ge=0,
        le=65535,
        description="port of /metrics, 0 = a free one; left out: none",
    )
    metrics_host: str = Field("127.0.0.1", description="address that /metrics listens on")
    metrics_tls: bool = Field(
        False,
        description="serve /metrics over TLS with tls_cert and tls_key; "
        "with tls_ca who scrapes it must show a certificate, too",
    )
    health_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="port of health alone, in plaintext for probes, 0 = a free one; left out: none",
    )
    health_host: str = Field("127.0.0.1", description="address that the health port listens on")
    health_file: Path | None = Field(
        None, description="file that gets the health port's address as one line"
    )

    @property
    def tls_files(self) -> TlsFiles:
        """The files of this server's own certificate, and of whom it trusts."""
        return TlsFiles(self.tls_cert, self.tls_key, self.tls_ca)

    def metrics_contexts(self) -> Callable[[], ssl.SSLContext] | None:
        """What the page of /metrics takes for TLS; None = plaintext. Raises StartError."""
        return tls_contexts(self.tls_files) if self.metrics_tls else None

    def serving_options(self) -> ServingOptions:
        """The same, as what servers take."""
        tls = self.tls_files
        health = self.health_port is not None
        return ServingOptions(
            address=host_port(self.host, self.port),
            insecure=self.insecure,
            tls=tls if tls.paths else None,
            cluster_token_file=self.cluster_token_file,
            reflection=self.reflection,
            grace=self.grace,
            health_address=host_port(self.health_host, self.health_port or 0) if health else None,
            health_file=self.health_file,
        )


class LinkSettings(ServingSettings):
    """How an orchestrator connects to workers."""

    link_ca: Path | None = Field(
        None,
        title="links to workers",
        description="PEM file of the CA that workers must be of; given: links use TLS",
    )
    link_cert: Path | None = Field(
        None, description="PEM file of the certificate that this orchestrator shows to workers"
    )
    link_key: Path | None = Field(None, description="PEM file of its private key")
    link_server_name: str = Field(
        "", description="name in the workers' certificates; left out: the host of each address"
    )

    def dialing(self) -> Dialing:
        """The same, as what links take. Raises StartError for files that cannot be used."""
        tls = TlsFiles(self.link_cert, self.link_key, self.link_ca, settings="link")
        tls.check()
        token = self.cluster_token_file
        return Dialing(
            tls=tls if tls.paths else None,
            server_name=self.link_server_name,
            token=ClusterToken(token) if token is not None else None,
            insecure=self.insecure,
        )


class WorkerSettings(ServingSettings):
    """What every worker has: its place in the registry, and how its model runs."""

    redis: str | None = Field(
        None,
        title="registry",
        description="URL of the Redis with the worker registry, as orchestrators take it",
    )
    worker_id: str = Field(min_length=1, description="name in the registry")
    advertise: str = Field(
        "", description="host:port that others reach this worker by, if not the one it listens on"
    )
    engine: Literal["native", "vllm"] = Field(
        "native",
        title="model and device",
        description="what computes: vllm runs the models and number formats that vLLM does",
    )
    device: str = Field("cpu", description="where the model runs")
    memory_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="with --engine vllm: the share of its GPU's memory that this process takes, "
        "weights included; left out: vLLM's own, nearly all",
    )
    execution: Literal["eager", "compiled", "piecewise", "full"] = Field(
        "eager",
        description="with --engine vllm: the model as it is, compiled (minutes at the start), or "
        "compiled and replayed from CUDA graphs, of the parts between attention or of all",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"] = Field(
        "float32",
        description="number format of the model; auto: the fastest one here, that is bfloat16 on a "
        "GPU and where a CPU multiplies it, else float16; int8: weights alone, on CPUs",
    )
    threads: int | None = Field(None, ge=1, description="threads of the model")
    cpus: Numbers = Field((), description="run the model on these cores only, joined by commas")
    cache_dir: Path | None = Field(None, description="folder for converted weights")
    synthetic: Path | None = Field(
        None,
        description="run no model: a JSON file says how long forwards take, and how often "
        "drafts are right",
    )
    kv_capacity_tokens: int | None = Field(
        None,
        title="K/V memory",
        ge=1,
        description="tokens of K/V that all sessions may hold together",
    )
    max_context: int | None = Field(None, ge=1, description="longest text of a session, in tokens")
    form_seconds: float = Field(
        4.0,
        title="response formats",
        gt=0,
        description="seconds of CPU that compiling a response format may take; more than at the "
        "orchestrators, so that what they let in is taken",
    )
    form_memory_mb: int = Field(
        512, ge=64, description="MiB of memory that compiling a response format may take"
    )

    def check_engine(self) -> None:
        """Raise ValueError for a way to run models that the engine does not have."""
        if self.dtype == "int8" and self.engine != "native":
            raise ValueError(f"engine: {self.engine} does not go with dtype int8")
        if self.execution != "eager" and self.engine != "vllm":
            raise ValueError("execution: only --engine vllm has others than eager")
