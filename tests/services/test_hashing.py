"""The hash of a text is one and the same in the client, in the services and in the documents."""

import re
from pathlib import Path

import paceline
from hypothesis import given
from hypothesis import strategies as st

from services.contract import types

WIRE = Path(__file__).parents[2] / "docs" / "wire.md"
VECTOR = re.compile(r"^\| (none|[\d, ]+) \| (\d+) \| `([0-9a-f]{16})` \|$", re.MULTILINE)
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=20)


@given(TOKENS, TOKENS)
def test_the_client_and_the_services_agree(first, second):
    begun = paceline.extend_hash(paceline.EMPTY_HASH, first)
    assert begun == types.extend_hash(types.EMPTY_HASH, first)
    whole = paceline.extend_hash(begun, second)
    assert whole == types.extend_hash(types.EMPTY_HASH, [*first, *second])
    assert 0 <= whole < 2**64


def test_the_values_in_the_documents_are_those():
    vectors = VECTOR.findall(WIRE.read_text())
    assert len(vectors) == 4
    for tokens, decimal, hexadecimal in vectors:
        text = [] if tokens == "none" else [int(token) for token in tokens.split(",")]
        hashed = paceline.extend_hash(paceline.EMPTY_HASH, text)
        assert hashed == int(decimal) == int(hexadecimal, 16)


@given(TOKENS, TOKENS, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_texts_that_differ_in_one_token_never_have_the_same_hash(before, after, one, other):
    hashes = {
        paceline.extend_hash(paceline.EMPTY_HASH, [*before, token, *after])
        for token in (one, other)
    }
    assert len(hashes) == len({one, other})
