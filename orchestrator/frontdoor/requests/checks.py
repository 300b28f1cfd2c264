"""Small checks that every field goes through."""

from __future__ import annotations

import struct

from services.contract.errors import InvalidRequest


def require(condition: bool, field: str, value: object, allowed: str) -> None:
    """Raise InvalidRequest unless `condition` holds."""
    if not condition:
        raise InvalidRequest(field, value, allowed)


def to_float32(value: float) -> float:
    """The value as the wire carries it."""
    single: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return single


def shown(value: float) -> float:
    """A float32 with no more digits than it has: 1.1, not 1.100000023841858."""
    for digits in range(6, 9):
        short = float(f"{value:.{digits}g}")
        if to_float32(short) == value:
            return short
    return value
