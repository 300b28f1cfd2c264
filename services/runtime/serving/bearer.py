"""Bearer tokens in the metadata of a call (RFC 6750)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

AUTHORIZATION = "authorization"

# The name of the scheme is the same in any case (RFC 9110, 11.1).
_BEARER = re.compile(r"bearer +([!-~]+) *", re.IGNORECASE)


def bearer_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The token that a call shows; empty when there is none, or more than one header."""
    values = [value for name, value in metadata or () if name == AUTHORIZATION]
    if len(values) != 1:
        return ""
    value = values[0]
    found = _BEARER.fullmatch(value.decode("latin-1") if isinstance(value, bytes) else value)
    return found[1] if found else ""


def with_bearer(token: str) -> tuple[tuple[str, str], ...]:
    """The metadata that shows a token."""
    return ((AUTHORIZATION, f"Bearer {token}"),)


def digest_of(token: str) -> bytes:
    """What a server keeps of a client's token, so that its files reveal none: SHA-256."""
    return hashlib.sha256(token.encode()).digest()


def token_entry(token: str) -> str:
    """A token's entry in a tokens file."""
    return f"sha256:{digest_of(token).hex()}"
