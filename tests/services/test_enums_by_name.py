"""Every enum that ours and the wire share has the same names in both."""

from __future__ import annotations

from enum import Enum

import pytest
from paceline import results
from paceline.v1 import inference_pb2 as pb

from services.contract import types
from services.contract.wire.enums import names_of, numbers_of

SHARED = [
    (types.FinishReason, results.FinishReason, pb.FinishReason),
    (types.Origin, results.Origin, pb.TokenOrigin),
    (types.SessionStatus, results.SessionStatus, pb.SessionStatus),
    (types.VerifyMode, results.Method, pb.RejectionSampleMethod),
    (types.DraftSource, results.DraftSource, pb.DraftSource),
]
NONE_OF_THEM = {"UNSPECIFIED", "UNKNOWN", "AUTO"}


def words(names) -> set[str]:
    return set(names) - NONE_OF_THEM


@pytest.mark.parametrize(("ours", "clients", "wire"), SHARED)
def test_the_three_have_the_same_members(ours, clients, wire):
    assert words(names_of(wire).values()) == words(one.name for one in ours)
    assert words(one.name for one in clients) == words(one.name for one in ours)


@pytest.mark.parametrize(("ours", "clients", "wire"), SHARED)
def test_numbers_lead_to_names_and_back(ours, clients, wire):
    names = names_of(wire)
    assert {names[number]: one for one, number in numbers_of(ours, wire).items()} == {
        one.name: one for one in ours
    }


def test_a_member_that_the_wire_has_not_is_found_at_import():
    class Odd(Enum):
        STOP = 1
        NEVER = 2

    with pytest.raises(KeyError, match="NEVER"):
        numbers_of(Odd, pb.FinishReason)
