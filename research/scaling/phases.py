"""A crowd that grows and shrinks over time."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from research.load.clients import Crowd
from services.contract.errors import StartError


@dataclass(frozen=True, slots=True)
class Phase:
    """So many sessions at a time, for so long."""

    sessions: int
    seconds: float


def parse_phases(text: str) -> tuple[Phase, ...]:
    """The phases of `0:30,8:60`; raises StartError."""
    phases = []
    for part in text.split(","):
        sessions, _, seconds = part.partition(":")
        try:
            phase = Phase(int(sessions), float(seconds))
        except ValueError:
            raise StartError(f"--phases: {part!r} is not SESSIONS:SECONDS") from None
        if phase.sessions < 0 or not 0 < phase.seconds < float("inf"):
            raise StartError(f"--phases: {part!r}: sessions from 0 on, for more than 0 seconds")
        phases.append(phase)
    return tuple(phases)


async def go_through(phases: Sequence[Phase], made: Crowd) -> None:
    """One phase after another."""
    for phase in phases:
        made.resize(phase.sessions)
        await asyncio.sleep(phase.seconds)
