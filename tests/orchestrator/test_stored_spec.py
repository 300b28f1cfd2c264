"""What is read back of a stored request is what a request may ask for, or a clear refusal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.requests import dump_spec, load_spec
from services.common.errors import DataLoss, StoreError
from tests.orchestrator.request_kit import sampled

SPEC = sampled(stop=["secret words"], logit_bias={3: 1.5}, logprobs=2, stop_token_ids=[4])
RECORD = json.loads(dump_spec(SPEC))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["GREEDY", 1, 2]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
PLACES = [(name,) for name in RECORD] + [("sampling", name) for name in RECORD["sampling"]]


def changed(place: tuple[str, ...], value: object) -> bytes:
    record = json.loads(json.dumps(RECORD))
    inner = record
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    return json.dumps(record).encode()


def test_the_record_that_is_changed_here_can_be_read() -> None:
    assert load_spec(changed(("seed",), RECORD["seed"]), SPEC.prompt) == SPEC


@given(st.sampled_from(PLACES), JSON)
def test_one_changed_value_is_sound_or_refused(place, value) -> None:
    try:
        spec = load_spec(changed(place, value), SPEC.prompt)
    except (DataLoss, StoreError) as error:
        refusal = str(error)
    else:
        # Whatever was taken can be stored again, and reads the same.
        assert load_spec(dump_spec(spec), spec.prompt) == spec
        refusal = ""
    assert "secret" not in refusal


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("sampling", "temperature"), float("nan")),
        (("sampling", "temperature"), float("inf")),
        (("sampling", "temperature"), "1"),
        (("sampling", "top_p"), -1),
        (("sampling", "max_tokens"), 0),
        (("sampling", "max_tokens"), 10**12),
        (("sampling", "max_tokens"), True),
        (("sampling", "top_k"), 0.5),
        (("sampling", "stop_token_ids"), [-1]),
        (("sampling", "logit_bias"), [[1, 1e9]]),
        (("seed",), 2**64),
        (("seed",), -1),
        (("mode",), "HOPE"),
        (("stop",), [""]),
        (("stop",), [7]),
        (("num_candidates",), 10**6),
        (("ephemeral",), "no"),
        (("colour",), "blue"),
    ],
    ids=str,
)
def test_what_no_request_can_ask_for_is_data_loss(place, value) -> None:
    with pytest.raises(DataLoss):
        load_spec(changed(place, value), SPEC.prompt)


def test_a_record_nested_without_end_is_data_loss() -> None:
    with pytest.raises(DataLoss):
        load_spec(b"[" * 200_000, ())


def test_what_a_newer_version_wrote_is_for_a_newer_version() -> None:
    with pytest.raises(StoreError, match="newer"):
        load_spec(changed(("version",), 2), ())


@given(st.integers(0, len(dump_spec(SPEC)) - 1))
def test_a_record_cut_short_is_data_loss(length) -> None:
    with pytest.raises(DataLoss):
        load_spec(dump_spec(SPEC)[:length], ())
