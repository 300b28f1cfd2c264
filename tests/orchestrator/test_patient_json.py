"""JSON of clients: long texts are read as short ones are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.frontdoor.requests.patient_json import LONG, check_json, read_json

PADDING = " " * LONG
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_a_long_text_has_the_value_of_a_short_one(value: Any) -> None:
    text = json.dumps(value)
    assert read_json(text) == read_json(PADDING + text) == json.loads(text)


@pytest.mark.parametrize("padding", ["", PADDING], ids=["short", "long"])
@pytest.mark.parametrize(
    "text", ["", "{", "[1,]", '{"a" 1}', "NaN", "-Infinity", "1 2", '"\x01"', "1" * 5000]
)
def test_what_is_no_json_is_refused(padding: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_json(padding + text)


@pytest.mark.parametrize("padding", ["", PADDING], ids=["short", "long"])
def test_a_text_that_is_too_deep_is_refused(padding: str) -> None:
    with pytest.raises(RecursionError):
        read_json(padding + "[" * 100_000)


@pytest.mark.parametrize("text", ['"\\ud800"', "1e999", '[{"a": "\\udc00"}]'])
def test_a_value_without_bytes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        check_json(read_json(text))
