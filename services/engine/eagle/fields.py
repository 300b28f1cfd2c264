"""Fields of a configuration that somebody else wrote: each of its type and within bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LONGEST = 4096


@dataclass(frozen=True, slots=True)
class Fields:
    """Every method raises ValueError, one line, for a value that cannot be."""

    said: Mapping[str, Any]

    def inside(self, name: str) -> Fields:
        """The fields below a name; none where it is not there."""
        value = self.said.get(name) or {}
        if not isinstance(value, dict):
            raise ValueError(f"{name} is no group of fields")
        return Fields(value)

    def count(
        self,
        name: str,
        default: int | None = None,
        *,
        most: int,
        least: int = 1,
        even: bool = False,
    ) -> int:
        """A whole number; without a default it has to be there."""
        value = self.said.get(name)
        value = default if value is None else value
        if value is None:
            raise ValueError(f"{name} is missing")
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{name} {str(value)[:40]} is no whole number from {least} to {most}")
        if even and value % 2:
            raise ValueError(f"{name} {value} is odd")
        return value

    def counts(self, name: str) -> tuple[int, ...]:
        """Whole numbers from 0 on, a few; none where they are not there."""
        value = self.said.get(name) or []
        whole = isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)
        if not whole or len(value) > 64:
            raise ValueError(f"{name} {str(value)[:40]} are no numbers of layers")
        return tuple(value)

    def number(
        self, name: str, default: float | None = None, *, least: float, most: float
    ) -> float:
        """A finite number; without a default it has to be there."""
        value = self.said.get(name)
        value = default if value is None else value
        if value is None:
            raise ValueError(f"{name} is missing")
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(f"{name} {str(value)[:40]} is no number")
        if not least <= value <= most:
            raise ValueError(f"{name} {str(value)[:40]} is not within {least} to {most}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.said.get(name)
        if value is None:
            return default
        if type(value) is not bool:
            raise ValueError(f"{name} {str(value)[:40]} is neither true nor false")
        return value

    def text(self, name: str) -> str | None:
        """A text that is not empty; None where there is none."""
        value = self.said.get(name)
        if value is None or value == "":
            return None
        if not isinstance(value, str) or len(value) > _LONGEST:
            raise ValueError(f"{name} is no text")
        return value
