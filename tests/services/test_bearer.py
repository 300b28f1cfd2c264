"""Which token a call shows."""

import pytest

from services.runtime.serving.bearer import bearer_of, with_bearer

NAME = "authorization"


@pytest.mark.parametrize(
    "metadata",
    [
        with_bearer("token"),
        [(NAME, "bearer token")],
        [(NAME, "BEARER  token  ")],
        [("x", "Bearer other"), (NAME, b"Bearer token")],
    ],
)
def test_one_whole_bearer_value_is_a_token(metadata):
    assert bearer_of(metadata) == "token"


@pytest.mark.parametrize(
    "values",
    [
        [],
        [""],
        ["token"],
        ["Bearer"],
        ["Bearer "],
        ["Basic token"],
        ["Bearer token x"],
        ["Bearer token\x00"],
        ["Bearer \u00e9"],
        [b"Bearer \xff"],
        ["Bearer token", "Bearer token"],
        ["Bearer token", "Bearer other"],
    ],
)
def test_nothing_else_is(values):
    assert bearer_of([(NAME, value) for value in values]) == ""
    assert bearer_of(None) == ""
