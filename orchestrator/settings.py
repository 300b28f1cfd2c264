"""Settings of an orchestrator process: flags, else `PACELINE_<NAME>`, else the default."""

from __future__ import annotations

import secrets
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from services.common.settings import ServingSettings


class OrchestratorSettings(ServingSettings):
    """Run one orchestrator: clients speak to it, it drives drafters and verifiers."""

    port: int = Field(50051, ge=0, le=65535, description="port to listen on, 0 = a free one")
    redis: str | None = Field(
        None, description="URL of the Redis for sessions; left out: a private local server"
    )
    verifier_addresses: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="host:port of verifiers, joined by commas, beside those in the registry"
    )
    drafter_addresses: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="host:port of drafters, joined by commas, beside those in the registry"
    )
    model: str = Field("", description="target model to accept; left out: the first verifier's")
    method: str = Field("", description="default drafting method; left out: the first offered")
    pacing: Literal["eager", "fixed"] = Field(
        "eager",
        description="when to verify: eager (asynchronous, as many draft tokens as pay) "
        "or fixed (synchronous, always as many as may be ahead)",
    )
    fallback: bool = Field(
        True,
        description="draft only as much as pays, and stop drafting while nothing does; "
        "off: eager verifies whatever is drafted",
    )
    num_speculative_tokens: int = Field(
        16, ge=1, le=64, description="most tokens a drafter may be ahead of the committed text"
    )
    chained_blocks: int = Field(
        1, ge=1, le=4, description="most blocks of one session at the verifier at once"
    )
    max_sessions: int = Field(1024, ge=1, description="most sessions open at once")
    deadline: float = Field(300.0, gt=0, description="seconds that one session may take")
    detach_grace: float = Field(
        10.0, ge=0, description="seconds that a session goes on after its client has left"
    )
    verifier_wait: float = Field(
        60.0, gt=0, description="seconds that a session waits for a verifier"
    )
    worker_silence: float = Field(
        2.0, gt=0, description="seconds without a message after which a worker counts as stalled"
    )
    engine_stall: float = Field(
        15.0,
        gt=0,
        description="seconds without an engine step, while work waits, "
        "after which a worker counts as stalled",
    )
    start_timeout: float = Field(
        120.0, gt=0, description="seconds to wait for a first verifier at start"
    )
    session_ttl: float = Field(3600.0, gt=0, description="seconds that an idle session is kept")
    finished_ttl: float = Field(600.0, gt=0, description="seconds that a finished one is kept")
    lease: float = Field(5.0, gt=0, description="seconds that the lease of a session lasts")
    store_patience: float = Field(
        60.0, gt=0, description="seconds that a session waits for a Redis that is away"
    )
    orchestrator_id: str = Field(
        default_factory=lambda: f"orchestrator-{secrets.token_hex(4)}",
        min_length=1,
        description="name in leases and logs; left out: a random one",
    )
    grace: float = Field(
        5.0, ge=0, description="seconds that open streams get when the process is stopped"
    )

    @field_validator("verifier_addresses", "drafter_addresses", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [part for part in value.split(",") if part] if isinstance(value, str) else value

    @field_validator("verifier_addresses", "drafter_addresses")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit():
                raise ValueError(f"{address!r} is not host:port")
        return value
