"""What a verifier tells of its steps, in its answer to Describe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from services.contract.errors import ProtocolError
from services.contract.types import StepTime
from services.contract.wire.records import require_ms

MOST_STEP_TIMES = 64
MOST_STEP_ROWS = 1 << 16


def encode_step_times(times: Iterable[StepTime]) -> list[dict[str, Any]]:
    """What its messages are made of. Times leave as float32."""
    return [one._asdict() for one in times]


def decode_step_times(messages: Sequence[Any]) -> tuple[StepTime, ...]:
    """A few counts of rows, ascending, each with a time above 0."""
    if len(messages) > MOST_STEP_TIMES:
        raise ProtocolError(f"step_times: {len(messages)} are more than {MOST_STEP_TIMES}")
    times = tuple(StepTime(one.rows, require_ms(one.ms, "step_times.ms")) for one in messages)
    rising = all(before.rows < after.rows for before, after in pairwise(times))
    if not rising or not all(1 <= one.rows <= MOST_STEP_ROWS and one.ms for one in times):
        raise ProtocolError("step_times: rows from 1 on, ascending, and times above 0 are wanted")
    return times
