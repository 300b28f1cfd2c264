"""Where draft tokens came from; only statistics read it.

A token has the source that the drafter names, else that of the session's method; an unknown one is
unspecified.
"""

from __future__ import annotations

from orchestrator.steering.config import SessionConfig
from services.contract.types import DraftSource, source_of

_KNOWN = bytes(DraftSource) + bytes(256 - len(DraftSource))
"""The source that each byte stands for."""


def known_sources(config: SessionConfig, sources: bytes, count: int) -> bytes:
    """The source of each of `count` tokens, from the drafter's `sources`."""
    if sources:
        return sources.translate(_KNOWN)
    return bytes((source_of(config.method),)) * count
