"""Sampling parameters that are plain numbers: each is declared here, once.

A request, a model's own defaults, what workers are told, stored sessions and the console's flags
follow from it by name; on the wire it is a field of that name.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any


@dataclass(frozen=True, slots=True)
class Range:
    """A closed range of numbers, `low` itself left out when `above`; never holds NaN."""

    low: float
    high: float
    above: bool = False

    def holds(self, value: float) -> bool:
        """Whether the value is in the range."""
        over = value > self.low if self.above else value >= self.low
        return over and value <= self.high

    @property
    def widened(self) -> Range:
        """The same for values that lost their last digits on the wire (float32)."""
        low, high = (end + sign * 1e-6 * abs(end) for end, sign in ((self.low, -1), (self.high, 1)))
        return Range(low, high, self.above)

    @property
    def text(self) -> str:
        """The range in words."""
        low = f"above {self.low:g}" if self.above else f"{self.low:g}"
        return f"{low} to {self.high:g}"


@dataclass(frozen=True, slots=True)
class Number:
    """What may be asked of a parameter, and the value at which it does nothing.

    `usable`: what a worker accepts from anyone; `unusable`: what it says of other values.
    `help`: what the console says of it. `cuts`: it leaves tokens out of a row's law; `counts`: it
    depends on the tokens before. `kind`: int or float.
    """

    neutral: float
    allowed: Range
    usable: Range
    unusable: str
    help: str
    cuts: bool
    counts: bool

    @property
    def kind(self) -> type[int] | type[float]:
        """The type of its values."""
        return type(self.neutral)


def number(
    neutral: float,
    allowed: Range,
    usable: Range | None = None,
    unusable: str = "",
    *,
    help: str,
    cuts: bool = False,
    counts: bool = False,
) -> Any:
    """A field of such a number; without `usable`, workers accept what is allowed, rounded."""
    usable, unusable = usable or allowed.widened, unusable or f"is not {allowed.text}"
    declared = Number(neutral, allowed, usable, unusable, help, cuts, counts)
    return field(default=neutral, metadata={"declared": declared})


def to_float32(value: float) -> float:
    """The value as the wire carries it."""
    single: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return single


LEAST_TEMPERATURE = to_float32(1e-4)
"""Below it decoding is greedy: logits divided by much less would overflow float32."""

_MOST, _LEAST_PENALTY = sys.float_info.max, to_float32(1e-4)
_FINITE, _POSITIVE = Range(-_MOST, _MOST), Range(0.0, _MOST, above=True)
_SHARE, _PENALTY = Range(0.0, 1.0), Range(-2.0, 2.0)


@dataclass(frozen=True, slots=True)
class SamplingNumbers:
    """The numbers, each at the value at which it does nothing; names are those of the wire."""

    temperature: float = number(
        1.0,
        Range(0.0, 1e4),
        Range(1e-6, _MOST),
        "cannot be sampled from",
        help="Below 0.0001 = greedy; left out: the model's default.",
    )
    top_p: float = number(
        1.0,
        _SHARE,
        Range(0.0, 1.0, above=True),
        "is outside (0, 1]",
        help="Keep the likeliest tokens, up to this; 0 = greedy.",
        cuts=True,
    )
    top_k: int = number(
        0,
        Range(0, 2**32 - 1),
        Range(0, _MOST),
        "is negative",
        help="Keep this many likeliest tokens.",
        cuts=True,
    )
    min_p: float = number(
        0.0,
        _SHARE,
        _SHARE,
        "is outside [0, 1]",
        help="Keep tokens at least this likely, against the likeliest.",
        cuts=True,
    )
    frequency_penalty: float = number(
        0.0,
        _PENALTY,
        _FINITE,
        "is not a number to subtract",
        help="Lowers a token by each time it was generated.",
        counts=True,
    )
    presence_penalty: float = number(
        0.0,
        _PENALTY,
        _FINITE,
        "is not a number to subtract",
        help="Lowers a token once it was generated.",
        counts=True,
    )
    # Logits are divided by it, too.
    repetition_penalty: float = number(
        1.0,
        Range(_LEAST_PENALTY, 2.0),
        _POSITIVE,
        "is not a positive number",
        help="Divides the scores of tokens seen before.",
        counts=True,
    )


NUMBERS: Mapping[str, Number] = {
    one.name: one.metadata["declared"] for one in fields(SamplingNumbers)
}


def as_drawn(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """All numbers that are asked for, as workers take them.

    Where the likeliest token alone is left, the temperature is 0.
    """
    drawn = dict(numbers)
    if drawn["temperature"] < LEAST_TEMPERATURE:
        drawn["temperature"] = 0.0
    if drawn["top_p"] == 0:
        drawn |= {"temperature": 0.0, "top_p": 1.0}
    return drawn


def _any(names: tuple[str, ...]) -> Callable[[SamplingNumbers], bool]:
    """Whether a record has some of these numbers on. Asked for each row, so without a loop."""
    values, neutral = attrgetter(*names), tuple(NUMBERS[name].neutral for name in names)
    return lambda sampling: values(sampling) != neutral


cuts = _any(tuple(name for name, one in NUMBERS.items() if one.cuts))
"""Whether tokens are left out of a row's law."""
counts = _any(tuple(name for name, one in NUMBERS.items() if one.counts))
"""Whether a row's law depends on counts of the tokens before it."""
