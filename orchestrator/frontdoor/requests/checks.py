"""Small checks that every field goes through."""

from __future__ import annotations

from orchestrator.session.ranges import MAX_PROMPT_BYTES
from services.contract.errors import InvalidRequest
from services.contract.sampling import to_float32


def require(condition: bool, field: str, value: object, allowed: str) -> None:
    """Raise InvalidRequest unless `condition` holds."""
    if not condition:
        raise InvalidRequest(field, value, allowed)


def size_of(text: str) -> int:
    """Bytes of a text, or characters of one that is too long anyway."""
    # Counting characters first keeps a huge text from being copied.
    return len(text) if len(text) > MAX_PROMPT_BYTES else len(text.encode())


def require_size(field: str, size: int, least: int) -> None:
    """Raise InvalidRequest for an input of too many bytes, or too few."""
    allowed = f"{least} to {MAX_PROMPT_BYTES} bytes"
    require(least <= size <= MAX_PROMPT_BYTES, field, f"{size} bytes", allowed)


def shown(value: float) -> float:
    """A float32 with no more digits than it has: 1.1, not 1.100000023841858."""
    for digits in range(6, 9):
        short = float(f"{value:.{digits}g}")
        if to_float32(short) == value:
            return short
    return value
