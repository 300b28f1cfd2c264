"""How an orchestrator serves: what the parts below its command line are told of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from orchestrator.session.output import LOGPROBS_KEPT
from orchestrator.steering.config import Limits

DEFAULT_POLICY = "adaptive"
POLICIES = (DEFAULT_POLICY, "matched", "eager", "fixed")
"""How verifiers decide how much of a draft they judge, by name; see `draft_budget`."""


def policy_of(name: Any) -> Any:
    """The name that a policy goes by: `thompson` is another one of `adaptive`."""
    return DEFAULT_POLICY if name == "thompson" else name


@dataclass(frozen=True, slots=True)
class Options:
    """How this orchestrator serves; `logprobs_kept` in tokens of a session, the memory in bytes.

    `ended_s`, `idle_s`: how long the store keeps sessions that have ended, and idle ones.
    """

    owner: str
    method: str = ""
    pacing: str = DEFAULT_POLICY
    num_speculative_tokens: int = 16
    max_sessions: int = 1024
    max_tokens_in_flight: int | None = None
    logprobs_kept: int = LOGPROBS_KEPT
    logprobs_memory: float = math.inf
    records_memory: float = math.inf
    ended_s: float = 600.0
    idle_s: float = 3600.0
    limits: Limits = field(default_factory=Limits)
    tenant_key: bytes = b""
