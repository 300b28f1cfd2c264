"""Every enum and record that ours and the wire share has the same names in both."""

from __future__ import annotations

from enum import Enum

import pytest
from paceline import results
from paceline.by_name import members_of, names_of, numbers_of
from paceline.v1 import inference_pb2 as pb

from services.contract import types

SHARED = [
    (types.FinishReason, results.FinishReason, pb.FinishReason.DESCRIPTOR),
    (types.Origin, results.Origin, pb.TokenOrigin.DESCRIPTOR),
    (types.SessionStatus, results.SessionStatus, pb.SessionStatus.DESCRIPTOR),
    (types.VerifyMode, results.Method, pb.RejectionSampleMethod.DESCRIPTOR),
    (types.DraftSource, results.DraftSource, pb.DraftSource.DESCRIPTOR),
]
NONE_OF_THEM = {"UNSPECIFIED", "UNKNOWN", "AUTO"}
EVERY = [(kind, wire) for *kinds, wire in SHARED for kind in kinds]


def words(names) -> set[str]:
    return set(names) - NONE_OF_THEM


@pytest.mark.parametrize(("ours", "clients", "wire"), SHARED)
def test_the_three_have_the_same_members(ours, clients, wire):
    assert words(names_of(wire).values()) == words(one.name for one in ours)
    assert words(one.name for one in clients) == words(one.name for one in ours)


@pytest.mark.parametrize(("kind", "wire"), EVERY)
def test_every_member_leads_to_its_number_and_back(kind, wire):
    members = members_of(kind, wire)
    assert words(one.name for one in kind) == words(one.name for one in members.values())
    for number, member in members.items():
        published = wire.values_by_number[number].name
        assert published.endswith(f"_{member.name}")


@pytest.mark.parametrize(("ours", "clients", "wire"), SHARED)
def test_numbers_are_those_of_the_members(ours, clients, wire):
    numbers = numbers_of(ours, wire)
    assert set(numbers) == set(ours)
    assert all(members_of(ours, wire)[number] is one for one, number in numbers.items())


def test_a_member_that_the_wire_has_not_is_found_at_import():
    class Odd(Enum):
        STOP = 1
        NEVER = 2

    with pytest.raises(KeyError, match="NEVER"):
        numbers_of(Odd, pb.FinishReason.DESCRIPTOR)
