"""Response formats: JSON of a schema, a match of a regular expression, or a choice.

Grammars are llguidance's. Checking one needs no model and no tokenizer; masks of allowed
tokens are in `services.engine.structure`. The limits here bound following a grammar,
not compiling it: a schema of 500 bytes may take minutes and gigabytes. So an untrusted format
first passes `services.runtime.format_vetting`.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, assert_never

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from services.contract.types import FormatKind, ResponseFormat

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MOST_CHARACTERS = {
    FormatKind.JSON_SCHEMA: 64 * 1024,
    FormatKind.REGEX: 4 * 1024,
    FormatKind.CHOICE: 16 * 1024,
}
"""Most characters of a format; of a choice, of all its options together."""

MOST_OPTIONS = 1024

LIMITS = LLParserLimits(
    initial_lexer_fuel=400_000,
    step_lexer_fuel=200_000,
    step_max_items=20_000,
    max_lexer_states=50_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
"""What compiling and following a grammar may cost; without texts of it in messages."""

# Room to indent, since a small model may never stop to. A schema's own "x-guidance" takes
# precedence.
_JSON: JsonCompileOptions = {"whitespace_pattern": r"[ \t\r\n]{0,32}"}

_LONGEST_REASON = 200


def grammar(wanted: ResponseFormat) -> str:
    """The format as a grammar of llguidance. Raises ValueError for JSON that is no schema."""
    match wanted.kind:
        case FormatKind.JSON_SCHEMA:
            return LLMatcher.grammar_from_json_schema(_schema(wanted.source[0]), _JSON)
        case FormatKind.REGEX:
            return LLMatcher.grammar_from_regex(wanted.source[0])
        case FormatKind.CHOICE:
            options = " | ".join(json.dumps(option) for option in wanted.source)
            return LLMatcher.grammar_from_lark(f"start: {options}\n")
        case _:
            assert_never(wanted.kind)


def problem(wanted: ResponseFormat) -> str:
    """Why the format cannot be used, in one line; empty if it can.

    Compiles it and looks for a first token, so call it in processes with limits only.
    """
    if misfit := size_problem(wanted):
        return misfit
    try:
        compiled = grammar(wanted)
    except ValueError as error:
        return _line(error)
    matcher = LLMatcher(_any_tokenizer(), compiled, log_level=0, limits=LIMITS)
    if matcher.is_error():
        return _line(matcher.get_error())
    matcher.compute_bitmask()
    return dead_end(matcher)


def dead_end(matcher: LLMatcher) -> str:
    """Why no token can follow at the matcher's position, its mask computed; empty if one can.

    Quotes nothing of the format.
    """
    if not matcher.is_error():
        return ""
    nothing = matcher.get_error().startswith("NoExtension")
    return "it allows no output" if nothing else "it takes too much to follow"


def size_problem(wanted: ResponseFormat) -> str:
    """Why no request can have a format of that size; empty if one can. Nothing is compiled."""
    size, most = sum(map(len, wanted.source)), MOST_CHARACTERS[wanted.kind]
    if size > most:
        return f"{size} characters, more than {most}"
    if len(wanted.source) > MOST_OPTIONS:
        return f"{len(wanted.source)} options, more than {MOST_OPTIONS}"
    if not (wanted.source and all(wanted.source)):
        return "empty"
    return ""


def _schema(text: str) -> str:
    """The schema as a JSON object. Raises ValueError if it is none, or allows nothing."""
    try:
        schema = json.loads(text)
        if schema is True:  # Any JSON; options are taken beside an object alone.
            schema = {}
        if not isinstance(schema, dict):
            raise ValueError("a JSON schema that allows anything is an object, or true")
        return json.dumps(schema)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


class _Bytes:
    """A tokenizer of single bytes: the least that llguidance needs of one."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"\xff<|end|>")
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@cache
def _any_tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()), eos_token=[_Bytes.eos_token_id])


def _line(*messages: object) -> str:
    text = " ".join(" ".join(map(str, messages)).split())
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"
