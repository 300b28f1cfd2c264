"""A message of the loop: a kind, then one row for each session that it is about."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

SESSIONS = 1024
"""Sessions have numbers below this, free again when they end."""
AHEAD = 8
"""Most tokens of a draft."""

ROW = np.dtype(
    [
        ("session", "<u4"),
        ("world", "<u4"),
        ("place", "<u4"),
        ("count", "<u4"),
        ("tokens", "<u4", (AHEAD + 1,)),
    ]
)
"""`count` tokens from `place` on. Of an opening, `place` is the length of the whole output."""

Rows = npt.NDArray[Any]
"""Of dtype ROW, [sessions]."""


class Kind(IntEnum):
    """What a frame's rows are."""

    OPEN = 0
    DRAFTS = 1
    STEP = 2


def encode(kind: Kind, rows: Rows) -> bytes:
    """The message."""
    return bytes((kind,)) + rows.tobytes()


def decode(message: bytes) -> tuple[Kind, Rows]:
    """Kind and rows, which share the message's memory."""
    return Kind(message[0]), np.frombuffer(message, ROW, offset=1)


def opening(session: int, world: int, tokens: int) -> bytes:
    """The message that opens one session."""
    row = np.zeros(1, ROW)
    row["session"], row["world"], row["place"] = session, world, tokens
    return encode(Kind.OPEN, row)
