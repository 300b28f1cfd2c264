"""Sessions whose answers have a JSON schema: ten schemas, drafted and verified in eight ways.

The schemas are small, and together they cover the keywords of schemas. Every string, list and
number is bounded, so that answers end by themselves and no text needs to be cut.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jsonschema import Draft202012Validator

from services.engine.checkpoint.heads import is_head
from testkit.chaos.transcript import Case

MAX_TOKENS = 192
"""More than any of the formats takes."""
Way = dict[str, Any]
"""How an answer is drafted and verified, as a request says it."""
METHODS, HEAD_METHODS = "model,ngram,graph", "eagle,ngram"
"""What the ways of a draft model, and of a head, need of a drafter."""
MODEL_WAYS: tuple[Way, ...] = (
    {"method": "model"},
    {"rejection_sample_method": "standard", "method": "model"},
    {"rejection_sample_method": "block", "method": "model"},
    {"method": "ngram"},
    {"rejection_sample_method": "standard", "method": "model", "num_candidates": 3},
    {"method": "model", "num_candidates": 3},
    {"rejection_sample_method": "block", "method": "ngram,model"},
    {"rejection_sample_method": "coupled", "method": "graph", "num_candidates": 3},
)
HEAD_WAYS: tuple[Way, ...] = (
    *(way | {"method": way["method"].replace("model", "eagle")} for way in MODEL_WAYS[:-1]),
    {"rejection_sample_method": "coupled", "method": "ngram,eagle", "num_candidates": 3},
)
NGRAM_WAYS: tuple[Way, ...] = (
    {"method": "ngram"},
    {"rejection_sample_method": "standard", "method": "ngram"},
    {"rejection_sample_method": "block", "method": "ngram"},
)
_TIGHT = {"x-guidance": {"whitespace_pattern": " ?"}}
"""A blank between the parts of JSON, or none: a small model may never stop to indent."""


@dataclass(frozen=True)
class Form:
    """A prompt, and the schema of its answer.

    `early`: so many tokens are well before the end of the shortest answer.
    """

    name: str
    prompt: str
    schema: dict[str, Any]
    early: int = 10

    @cached_property
    def text(self) -> str:
        """The schema as a request has it."""
        return json.dumps(_TIGHT | self.schema)

    def problem(self, answer: str) -> str:
        """Why a text is no answer, in one line; empty if it is one."""
        try:
            found = json.loads(answer, object_pairs_hook=_once, parse_constant=_refused)
        except ValueError as error:
            return f"no JSON: {error}"
        errors = Draft202012Validator(self.schema).iter_errors(found)
        return next((f"not of its schema: {error.message}" for error in errors), "")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, whose names must differ: JSON lets the last one win, no reader should have to."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name comes twice")
    return found


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _string(longest: int, **more: Any) -> dict[str, Any]:
    return {"type": "string", "maxLength": longest, **more}


def _integer(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def _object(optional: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


FORMS = (
    Form(
        "nested objects",
        "A town by the sea and where it lies, as JSON:\n",
        _object(
            town=_object(
                name=_string(12), at=_object(north=_integer(-90, 90), east=_integer(-180, 180))
            )
        ),
    ),
    Form(
        "lists with bounds",
        "Colours of a flag and the widths of its stripes, as JSON:\n",
        _object(
            colours={
                "type": "array",
                "items": {"enum": ["red", "white", "blue", "green", "black"]},
                "minItems": 2,
                "maxItems": 4,
            },
            widths={"type": "array", "items": _integer(1, 99), "minItems": 1, "maxItems": 3},
        ),
    ),
    Form(
        "choices",
        "The state of an order, as JSON:\n",
        _object(
            state={"enum": ["open", "paid", "shipped", "lost", None, 0]},
            kind={"const": "order"},
            gift={"type": "boolean"},
        ),
    ),
    Form(
        "patterns",
        "A flight, as JSON:\n",
        _object(
            flight={"type": "string", "pattern": "^[A-Z]{2}[0-9]{2,4}$"},
            day={"type": "string", "pattern": "^20[0-9]{2}-(0[1-9]|1[0-2])-[0-2][0-9]$"},
        ),
    ),
    Form(
        "numbers with bounds",
        "A dog's age in years and its weight in kilograms, as JSON:\n",
        _object(
            age=_integer(0, 25),
            weight={"type": "number", "minimum": 0.5, "maximum": 90, "multipleOf": 0.5},
            legs={"type": "integer", "exclusiveMinimum": -1, "exclusiveMaximum": 5},
        ),
    ),
    Form(
        "fields that may be missing",
        "A person, as JSON:\n",
        _object(
            ("born", "email", "tall"),
            name=_string(14, minLength=1),
            born=_integer(1900, 2020),
            email={"type": "string", "pattern": "^[a-z]{1,8}@[a-z]{1,8}\\.(com|org)$"},
            tall={"type": "boolean"},
        ),
        early=4,
    ),
    Form(
        "unions",
        "Three answers to three questions, as JSON:\n",
        {
            "type": "array",
            "items": {
                "anyOf": [
                    _string(10),
                    _integer(0, 999),
                    {"type": "null"},
                    _object(unsure={"type": "boolean"}),
                ]
            },
            "minItems": 3,
            "maxItems": 3,
        },
        early=3,
    ),
    Form(
        "Unicode strings",
        'Cities under their own names, such as "Zürich" and "東京", as JSON:\n',
        _object(
            city={"enum": ["Zürich", "東京", "São Paulo", "Казань", "Αθήνα", "القاهرة"]},
            letters={"type": "string", "pattern": "^[à-ÿα-ω一-龥]{1,4}$"},
            note=_string(6),
        ),
    ),
    Form(
        "tuples",
        "A move of chess: its number, piece and squares, as JSON:\n",
        {
            "type": "array",
            "prefixItems": [
                _integer(1, 200),
                {"enum": ["king", "queen", "rook", "bishop", "knight", "pawn"]},
                {"type": "string", "pattern": "^[a-h][1-8]$"},
                {"type": "string", "pattern": "^[a-h][1-8]$"},
            ],
            "items": False,
            "minItems": 4,
        },
        early=6,
    ),
    Form(
        "definitions",
        "A family tree, as JSON:\n",
        {
            "$defs": {"person": _object(name=_string(8), age=_integer(0, 120))},
            **_object(child={"$ref": "#/$defs/person"}, parent={"$ref": "#/$defs/person"}),
        },
    ),
)


def ways_of(draft: str) -> tuple[Sequence[Way], tuple[str, ...]]:
    """The ways of a draft model, of a head, or of n-grams alone; and their drafter's flags."""
    if is_head(draft):
        return HEAD_WAYS, ("--method", HEAD_METHODS)
    return (MODEL_WAYS, ("--method", METHODS)) if draft else (NGRAM_WAYS, ())


def form_cases(seed: int, ways: Sequence[Way]) -> list[Case]:
    """Every format in every way, at temperature 1."""
    return [
        _case(form, way, 100 * seed + number) for number, form in enumerate(FORMS) for way in ways
    ]


def _case(form: Form, way: Way, seed: int) -> Case:
    sampled = {"temperature": 1.0, "seed": seed, "max_tokens": MAX_TOKENS}
    options = {**sampled, "json_schema": form.text, "include_rounds": True, **way}
    return Case(form.prompt, options, form.problem, form.early)
