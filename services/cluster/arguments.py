"""What commands without an options class read from their command line."""

from __future__ import annotations

from services.contract.errors import StartError
from services.runtime.options import fractions


def fractions_of(option: str, text: str) -> tuple[float, ...]:
    """Numbers from `0,0.7,1`; StartError, naming the option, for anything else."""
    try:
        return fractions(text)
    except ValueError as error:
        raise StartError(f"{option}: {text!r} is {error}") from None


def within(option: str, value: float, low: float, high: float) -> float:
    """The value; StartError, naming the option and the range, for one beyond."""
    if not low <= value <= high:
        raise StartError(f"{option}: {value:g} is not between {low:g} and {high:g}")
    return value
