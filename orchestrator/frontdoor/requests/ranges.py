"""The numbers that bound a request, in one place."""

from __future__ import annotations

from dataclasses import dataclass

from services.contract.formats import MOST_CHARACTERS, MOST_OPTIONS
from services.contract.types import FormatKind

MAX_PROMPT_BYTES = 4 * 1024 * 1024
MAX_REQUEST_BYTES = 2 * MAX_PROMPT_BYTES
"""Of a whole message: what is longer is refused before it is read, which locks the interpreter."""
MAX_RENDERED_CHARACTERS = 2 * MAX_PROMPT_BYTES
"""Of the text that a chat template makes of a conversation."""
MAX_MESSAGES = 1024
MAX_STOPS = 16
MAX_STOP_LENGTH = 256
MAX_STOP_TOKEN_IDS = 64
MAX_LOGPROBS = 20
MAX_SPECULATIVE_TOKENS = 64
MAX_CANDIDATES = 8
MAX_BIASES = 1024
MAX_METHOD_LENGTH = 256
DEFAULT_MAX_TOKENS = 256
ROLES = ("system", "user", "assistant")


ALLOWED_FORMATS = {
    kind: f"{what} of at most {MOST_CHARACTERS[kind]} characters"
    for kind, what in {
        FormatKind.JSON_SCHEMA: "a JSON schema that can be compiled,",
        FormatKind.REGEX: "a regular expression that can be compiled,",
        FormatKind.CHOICE: f"1 to {MOST_OPTIONS} options, none empty, together",
    }.items()
}


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

    @property
    def text(self) -> str:
        """The range in words."""
        zero = "0, or " if self.or_zero else ""
        low = f"above {self.low:g}" if self.above else f"{self.low:g}"
        return f"{zero}{low} to {self.high:g}"


# Far below, logits divided by it would overflow float32.
TEMPERATURE = Range(1e-4, 1e4, or_zero=True)
TOP_P = Range(0.0, 1.0, above=True)
MIN_P = Range(0.0, 1.0)
PENALTY = Range(-2.0, 2.0)
# Logits are divided by it, too.
REPETITION_PENALTY = Range(1e-4, 2.0)
BIAS = Range(-100.0, 100.0)

# Each number of a request: its range, and the value at which it does nothing.
NUMBERS: dict[str, tuple[Range, float]] = {
    "temperature": (TEMPERATURE, 1.0),
    "top_p": (TOP_P, 1.0),
    "min_p": (MIN_P, 0.0),
    "frequency_penalty": (PENALTY, 0.0),
    "presence_penalty": (PENALTY, 0.0),
    "repetition_penalty": (REPETITION_PENALTY, 1.0),
}
