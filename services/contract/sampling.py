"""Sampling parameters that are plain numbers: each is declared here, once.

A request, a model's own defaults, what workers are told, stored sessions and the console's flags
follow from it by name; on the wire it is a field of that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any


@dataclass(frozen=True, slots=True)
class Range:
    """A closed range of numbers, `low` itself left out when `above`; never holds NaN.

    With `or_zero`, 0 is allowed beside it.
    """

    low: float
    high: float
    above: bool = False
    or_zero: bool = False

    def holds(self, value: float) -> bool:
        """Whether the value is in the range."""
        if self.or_zero and value == 0:
            return True
        over = value > self.low if self.above else value >= self.low
        return over and value <= self.high

    def nearly_holds(self, value: float) -> bool:
        """Whether a value is in the range that lost its last digits on the wire (float32)."""
        slack = 1e-6
        low, high = self.low - slack * abs(self.low), self.high + slack * abs(self.high)
        return Range(low, high, self.above, self.or_zero).holds(value)

    @property
    def text(self) -> str:
        """The range in words."""
        zero = "0, or " if self.or_zero else ""
        low = f"above {self.low:g}" if self.above else f"{self.low:g}"
        return f"{zero}{low} to {self.high:g}"


@dataclass(frozen=True, slots=True)
class Number:
    """What may be asked of a parameter, and the value at which it does nothing.

    `text`: what the console says of it. `cuts`: it leaves tokens out of a row's law; `counts`: it
    depends on the tokens before. `kind`: int or float.
    """

    allowed: Range
    neutral: float
    text: str
    cuts: bool = False
    counts: bool = False

    @property
    def kind(self) -> type[int] | type[float]:
        """The type of its values."""
        return type(self.neutral)


def _number(low: float, high: float, neutral: float, text: str, **more: bool) -> Any:
    marks = {name: more.pop(name, False) for name in ("cuts", "counts")}
    declared = Number(Range(low, high, **more), neutral, text, **marks)
    return field(default=neutral, metadata={"declared": declared})


@dataclass(frozen=True, slots=True)
class SamplingNumbers:
    """The numbers, each at the value at which it does nothing; names are those of the wire."""

    # Far below, logits divided by it would overflow float32.
    temperature: float = _number(
        1e-4, 1e4, 1.0, "0 = greedy; left out: the model's default.", or_zero=True
    )
    top_p: float = _number(
        0.0, 1.0, 1.0, "Keep the likeliest tokens, up to this.", above=True, cuts=True
    )
    top_k: int = _number(0, 2**32 - 1, 0, "Keep this many likeliest tokens.", cuts=True)
    min_p: float = _number(
        0.0, 1.0, 0.0, "Keep tokens at least this likely, against the likeliest.", cuts=True
    )
    frequency_penalty: float = _number(
        -2.0, 2.0, 0.0, "Lowers a token by each time it was generated.", counts=True
    )
    presence_penalty: float = _number(
        -2.0, 2.0, 0.0, "Lowers a token once it was generated.", counts=True
    )
    # Logits are divided by it, too.
    repetition_penalty: float = _number(
        1e-4, 2.0, 1.0, "Divides the scores of tokens seen before.", counts=True
    )


NUMBERS: Mapping[str, Number] = {
    one.name: one.metadata["declared"] for one in fields(SamplingNumbers)
}


class _Any:
    """Whether a record has some of these numbers on. Asked for each row, so without a loop."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._of = attrgetter(*names)
        self._neutral = tuple(NUMBERS[name].neutral for name in names)

    def __call__(self, sampling: SamplingNumbers) -> bool:
        return bool(self._of(sampling) != self._neutral)


cuts = _Any(tuple(name for name, one in NUMBERS.items() if one.cuts))
"""Whether tokens are left out of a row's law."""
counts = _Any(tuple(name for name, one in NUMBERS.items() if one.counts))
"""Whether a row's law depends on counts of the tokens before it."""
