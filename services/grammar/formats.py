"""Response formats: JSON of a schema, a regular expression, a choice, a grammar, or tags in text.

Grammars are llguidance's. Checking one needs no model and no tokenizer; masks of allowed
tokens are in `services.engine.structure`. The limits here bound following a grammar,
not compiling it: a schema of 500 bytes may take minutes and gigabytes. So an untrusted format
first passes `services.grammar.vetting`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, assert_never

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, grammar_from

from services.contract.types import FormatKind, ResponseFormat
from services.grammar.structural_tags import tags_grammar

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MOST_CHARACTERS = {
    FormatKind.JSON_SCHEMA: 64 * 1024,
    FormatKind.REGEX: 4 * 1024,
    FormatKind.CHOICE: 16 * 1024,
    FormatKind.GRAMMAR: 64 * 1024,
    FormatKind.STRUCTURAL_TAG: 64 * 1024,
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
_NAME = re.compile(r"<[^<>\s]+>")
"""How a grammar can name a special token."""
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|/)")
"""How JSON may write a character of such a name."""


class Checked(NamedTuple):
    """`complaint`: why a format cannot be used, in one line; empty if it can.

    `grammar`: what llguidance reads then.
    """

    complaint: str
    grammar: str = ""


def grammar(wanted: ResponseFormat, special: Collection[str] = ()) -> str:
    """The format as a grammar of llguidance. Raises ValueError for one that cannot be read.

    `special`: names of special tokens, which tags tell from text. GBNF is converted in plain
    Python, which may take seconds.
    """
    match wanted.kind:
        case FormatKind.JSON_SCHEMA:
            return LLMatcher.grammar_from_json_schema(_schema(wanted.source[0]), _JSON)
        case FormatKind.REGEX:
            return LLMatcher.grammar_from_regex(wanted.source[0])
        case FormatKind.CHOICE:
            options = " | ".join(json.dumps(option) for option in wanted.source)
            return LLMatcher.grammar_from_lark(f"start: {options}\n")
        case FormatKind.GRAMMAR:
            return grammar_from("grammar", wanted.source[0])
        case FormatKind.STRUCTURAL_TAG:
            try:
                tags = tags_grammar(wanted.source[0], special, _JSON)
            except RecursionError:
                raise ValueError("it is nested too deep") from None
            return LLMatcher.grammar_from_lark(tags)
        case _:
            assert_never(wanted.kind)


def check(wanted: ResponseFormat, special: Collection[str] = ()) -> Checked:
    """Whether the format can be used, by outputs with these special tokens.

    Compiles it and looks for a first token, so call it in processes with limits only.
    """
    if misfit := size_problem(wanted):
        return Checked(misfit)
    try:
        compiled = grammar(wanted, special)
    except ValueError as error:
        return Checked(_line(error))
    tokenizer = _any_tokenizer(tuple(special))
    matcher = LLMatcher(tokenizer, compiled, log_level=0, limits=LIMITS)
    if matcher.is_error():
        return Checked(_line(matcher.get_error()))
    return Checked(dead_end(matcher), compiled)


def problem(wanted: ResponseFormat) -> str:
    """What is wrong with a format; see `check`."""
    return check(wanted).complaint


def named_in(wanted: ResponseFormat, special: Iterable[str]) -> tuple[str, ...]:
    """Those special tokens that the format may mean; however many there are, it is read once."""
    if wanted.kind not in (FormatKind.GRAMMAR, FormatKind.STRUCTURAL_TAG):
        return ()
    [source] = wanted.source
    # In JSON a name may be written with escapes.
    plain = _ESCAPED.sub(lambda one: chr(int(one[1], 16)) if one[1] else "/", source)
    found = {*_NAME.findall(source), *_NAME.findall(plain)}
    return tuple(name for name in special if name in found)


def dead_end(matcher: LLMatcher) -> str:
    """Why no token can follow at the matcher's position, or not be taken back; empty if one can.

    Quotes nothing of the format.
    """
    mask = matcher.compute_bitmask()
    if not matcher.is_error():
        place = next(place for place, byte in enumerate(mask) if byte)
        token = 8 * place + (mask[place] & -mask[place]).bit_length() - 1
        moved = matcher.deep_copy()
        moved.consume_token(token)
        return "" if moved.rollback(1) else "max_tokens and stop of rules are not served"
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
    """A tokenizer of single bytes and special tokens: the least that llguidance needs of one."""

    eos_token_id = 256
    bos_token_id = None

    def __init__(self, special: Collection[str]) -> None:
        named = [b"\xff" + name.encode() for name in ("<|end|>", *special)]
        self.tokens = (*(bytes([byte]) for byte in range(256)), *named)
        self.special_token_ids = tuple(range(256, len(self.tokens)))

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@lru_cache(maxsize=8)
def _any_tokenizer(special: tuple[str, ...]) -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes(special)), eos_token=[_Bytes.eos_token_id])


def _line(*messages: object) -> str:
    text = " ".join(" ".join(map(str, messages)).split())
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"
