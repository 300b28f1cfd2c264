"""Settings of an orchestrator process: flags, else `PACELINE_<NAME>`, else the default."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from orchestrator.session.options import policy_of
from services.contract.types import split_methods
from services.grammar.vetting import Bounds
from services.runtime.options import Words
from services.runtime.settings import LinkSettings


def _each_once(value: str) -> str:
    names = split_methods(value)
    if len(set(names)) < len(names) or "" in names:
        raise ValueError(f"{value!r} is not a list of methods, each named once")
    return ",".join(names)


def _reachable(value: tuple[str, ...]) -> tuple[str, ...]:
    for address in value:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{address!r} is not host:port")
    return value


Addresses = Annotated[Words, AfterValidator(_reachable)]
Pacing = Annotated[Literal["adaptive", "matched", "eager", "fixed"], BeforeValidator(policy_of)]


class OrchestratorSettings(LinkSettings):
    """Run one orchestrator: clients speak to it, it drives drafters and verifiers."""

    verifier_addresses: Addresses = Field(
        (),
        title="workers",
        description="host:port of verifiers, joined by commas, beside those in the registry",
    )
    drafter_addresses: Addresses = Field(
        (), description="host:port of drafters, joined by commas, beside those in the registry"
    )
    worker_subset: int = Field(
        0,
        ge=0,
        description="workers of each role in the registry that this orchestrator is connected to; "
        "it takes others only for sessions that need just them; 0: all of them",
    )
    model: str = Field("", description="target model to accept; left out: the first verifier's")
    verifier_wait: float = Field(
        60.0, gt=0, description="seconds that a session waits for a verifier"
    )
    verdict_wait: float = Field(
        30.0,
        gt=0,
        description="seconds that a verifier may take for one block, before the session leaves it",
    )
    opening_wait: float = Field(
        30.0,
        gt=0,
        description="seconds that a worker may take to open a session, beside four times what "
        "its queue and pace explain, before the session leaves it; each time in a row twice that",
    )
    worker_silence: float = Field(
        2.0,
        gt=0,
        description="seconds without a message after which a worker counts as stalled; one whose "
        "usual gaps are long is given up to three times as many",
    )
    engine_stall: float = Field(
        15.0,
        gt=0,
        description="seconds without an engine step while work waits, in one step, or with a "
        "command that is not taken, after which a worker counts as stalled",
    )
    start_timeout: float = Field(
        120.0, gt=0, description="seconds to wait for a first verifier at start"
    )
    method: Annotated[str, AfterValidator(_each_once)] = Field(
        "",
        title="drafting and pacing",
        description="default drafting method, or several joined by commas; "
        "left out: the first offered",
    )
    pacing: Pacing = Field(
        "adaptive",
        description="when to verify: adaptive (asynchronous, as many draft tokens as pay), "
        "matched (as many as are drafted while a block is verified), eager (whatever is there) "
        "or fixed (synchronous, always as many as may be ahead)",
    )
    num_speculative_tokens: int = Field(
        16, ge=1, le=64, description="most tokens a drafter may be ahead of the committed text"
    )
    redis: str | None = Field(
        None,
        title="sessions and their store",
        description="URL of the Redis for sessions: redis:// or rediss:// (TLS), or "
        "redis+sentinel://HOST,HOST/SERVICE, or redis+cluster://HOST,HOST; left out: a private "
        "local server",
    )
    store_replicas: int = Field(
        0,
        ge=0,
        le=16,
        description="replicas of Redis that must have a write before it counts as stored (WAIT); "
        "where they do not, sessions wait as if Redis were away; needs durability required",
    )
    durability: Literal["required", "relaxed"] = Field(
        "required",
        description="whether tokens wait for Redis before they are sent: required (nothing is "
        "sent that is not stored) or relaxed (a Redis that is slow or away holds nobody up; "
        "what is not stored when the orchestrator dies is generated again, the same where the "
        "session is greedy or coupled, and is missing otherwise)",
    )
    session_ttl: float = Field(3600.0, gt=0, description="seconds that an idle session is kept")
    finished_ttl: float = Field(600.0, gt=0, description="seconds that a finished one is kept")
    lease: float = Field(5.0, gt=0, description="seconds that the lease of a session lasts")
    store_patience: float = Field(
        60.0, gt=0, description="seconds that a session waits for a Redis that is away"
    )
    store_silence: float = Field(
        5.0,
        gt=0,
        description="seconds that Redis may take no writes before health says: not ready",
    )
    orchestrator_id: str = Field(
        default_factory=lambda: f"orchestrator-{secrets.token_hex(4)}",
        min_length=1,
        description="name in leases and logs; left out: a random one",
    )
    tokens_file: Path | None = Field(
        None,
        title="who may call, and limits",
        description="JSON file of tenants: digests of their tokens, and their limits; "
        "left out: no client is asked who it is",
    )
    tenant_key: SecretStr | None = Field(
        None,
        description="key of the digests by which drafters tell tenants apart, the same for all "
        "orchestrators of a cluster; left out: digests that anybody can compute",
    )
    tenant_share: float = Field(
        0.25,
        gt=0,
        description="of one core's time, what the requests of one tenant may cost this process "
        "before they are sessions (reading, tokenizing, compiling) and in going on with old ones; "
        "beyond that the tenant is refused until it is paid off; needs a tokens file",
    )
    max_sessions: int = Field(1024, ge=1, description="most sessions open at once")
    max_tokens_in_flight: int | None = Field(
        None,
        ge=1,
        description="most tokens, prompt and max_tokens, of all sessions open at once; "
        "left out: twice what the connected verifiers hold",
    )
    max_calls: int | None = Field(
        None,
        ge=1,
        description="most streams open at once, slow readers and retries included, and as many "
        "other calls; left out: four for each session of --max-sessions",
    )
    logprobs_kept: int = Field(
        4096,
        ge=256,
        description="tokens of a session whose logprobs wait for readers that are behind or come "
        "back; those before them are sent without",
    )
    logprobs_memory: int = Field(
        512,
        ge=16,
        description="MiB that such logprobs of all sessions may come to take; a session that would "
        "pass it is refused",
    )
    records_memory: int = Field(
        1024,
        ge=16,
        description="MiB of Redis that the records of this orchestrator's sessions may take, those "
        "that have ended and are kept included: all orchestrators together less than Redis may "
        "hold; a request that would pass it is refused, and one tenant of several at half of it",
    )
    deadline: float = Field(300.0, gt=0, description="seconds that one session may take")
    detach_grace: float = Field(
        10.0, ge=0, description="seconds that a session goes on after its client has left"
    )
    read_patience: float = Field(
        60.0, gt=0, description="seconds after which a stream that its client does not read ends"
    )
    form_processes: int = Field(
        3,
        title="response formats",
        ge=1,
        description="most processes that compile response formats of requests, to see whether "
        "they can be served; with several, one is left for other tenants",
    )
    form_seconds: float = Field(
        2.0, gt=0, description="seconds of CPU that compiling a response format may take"
    )
    form_memory_mb: int = Field(
        512, ge=64, description="MiB of memory that compiling a response format may take"
    )
    vllm_engine: bool = Field(
        False,
        title="gateways",
        description="serve vllm.grpc.engine.VllmEngine on the same port, too: what gateways "
        "with an OpenAI API speak to an engine; needs the extra gateway",
    )
    port: int = Field(50051, ge=0, le=65535, description="port to listen on, 0 = a free one")
    grace: float = Field(
        5.0,
        ge=0,
        description="seconds in which this process ends when it is stopped; streams get three "
        "fifths of them, then their sessions are handed over",
    )

    def form_bounds(self) -> Bounds:
        """What compiling one response format may take."""
        return Bounds(self.form_seconds, self.form_memory_mb << 20)

    @model_validator(mode="after")
    def _replicas_of_what_waits(self) -> Self:
        if self.store_replicas and self.durability != "required":
            raise ValueError("store_replicas: with durability relaxed nothing waits for replicas")
        return self
