"""A small JSON schema, and what is an answer to it."""

from __future__ import annotations

from typing import Any


def answer_schema(longest_name: int) -> dict[str, Any]:
    return {
        "x-guidance": {"whitespace_pattern": " ?"},
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": longest_name},
            "count": {"type": "integer", "minimum": 0, "maximum": 99},
            "kind": {"enum": ["model", "ngram"]},
        },
        "required": ["name", "count", "kind"],
        "additionalProperties": False,
    }


def is_answer(found: Any, longest_name: int) -> bool:
    return (
        list(found) == ["name", "count", "kind"]
        and len(found["name"]) <= longest_name
        and 0 <= found["count"] <= 99
        and found["kind"] in ("model", "ngram")
    )
