"""Tenants: who a session belongs to, what they may use, and what workers may know of them."""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """The limits of one tenant; None = no limit of its own.

    `max_tokens_in_flight` counts prompt and max_tokens of all its open sessions,
    `max_tokens` is the most that one request may generate.
    """

    max_sessions: int | None = None
    max_tokens_in_flight: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whose sessions these are. `name` has no slash: it leads a session's name."""

    name: str
    limits: TenantLimits = field(default_factory=TenantLimits)


DEFAULT_TENANT = Tenant("default")


def phrase_scope(tenant: str, tokenizer_fingerprint: str, key: bytes) -> str:
    """Whose phrases a session may learn and propose, of which tokenizer."""
    return _scope("phrases", tenant, tokenizer_fingerprint, key)


def cache_scope(tenant: str, model_fingerprint: str, key: bytes) -> str:
    """Whose prefix cache a session shares, of which model."""
    return _scope("prefixes", tenant, model_fingerprint, key)


def _scope(kind: str, tenant: str, fingerprint: str, key: bytes) -> str:
    """128 bits in hex.

    From it workers learn only that two sessions are of the same tenant. HMAC-SHA-256. An
    empty `key` still keeps tenants apart, but anyone who knows a tenant's name can
    compute its scope.
    """
    content = json.dumps([kind, tenant, fingerprint]).encode()
    return hmac.digest(key, content, "sha256").hex()[:32]
