"""What other ranks say to rank 0, apart from what they bring to a meeting."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LastWords:
    """Why a rank ends, in one line."""

    text: str
