"""Every enum and record that ours and the wire share has the same names in both."""

from dataclasses import fields
from enum import Enum

import pytest
from paceline import results
from paceline.by_name import members_of, names_of, numbers_of, read, shared
from paceline.v1 import inference_pb2 as pb

from orchestrator.steering.rounds import RoundRecord
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


def words(names):
    return set(names) - NONE_OF_THEM


@pytest.mark.parametrize(("kind", "wire"), EVERY)
def test_every_member_leads_to_its_number_and_back(kind, wire):
    members = members_of(kind, wire)
    assert words(names_of(wire).values()) == words(one.name for one in kind)
    assert words(one.name for one in kind) == words(one.name for one in members.values())
    for number, member in members.items():
        published = wire.values_by_number[number].name
        assert published.endswith(f"_{member.name}")


def test_a_member_that_the_wire_has_not_is_found_at_import():
    class Odd(Enum):
        STOP = 1
        NEVER = 2

    with pytest.raises(KeyError, match="NEVER"):
        numbers_of(Odd, pb.FinishReason.DESCRIPTOR)


RECORDS = {
    results.RoundStats: pb.RoundStats,
    results.SessionRound: pb.SessionRound,
    results.Started: pb.Started,
    results.Chunk: pb.Chunk,
    results.TokenLogprobs: pb.TokenLogprobs,
    results.Complete: pb.Complete,
    results.Usage: pb.Usage,
    results.SpecDecodeMetrics: pb.SpecDecodeMetrics,
    results.DraftSourceMetrics: pb.DraftSourceMetrics,
    results.Session: pb.GetSessionResponse,
    results.ModelInfo: pb.GetModelInfoResponse,
    results.ServerInfo: pb.GetServerInfoResponse,
    results.ServerTotals: pb.ServerTotals,
    results.WorkerInfo: pb.WorkerInfo,
    results.Scores: pb.ScoreResponse,
    results.ContinuationScore: pb.ContinuationScore,
}
OF_ANOTHER = {results.Started: {"prompt_logprobs", "prompt_offset"}}
"""Fields that a record of their own holds: `PromptLogprobs`."""


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_of_the_client_has_the_fields_of_its_message(record):
    published = {field.name for field in RECORDS[record].DESCRIPTOR.fields}
    assert {field.name for field in fields(record)} == published - OF_ANOTHER.get(record, set())


def test_all_that_is_told_of_a_round_is_in_its_record():
    named_otherwise, always_zero = {"index", "rejection_sample_method"}, {"discarded_tokens"}
    told = {field.name for field in fields(results.RoundStats)}
    assert told - set(shared(pb.RoundStats, RoundRecord)) == named_otherwise | always_zero


def test_a_number_that_is_not_known_reads_as_unknown_in_every_place():
    message = pb.GetSessionResponse(status=99, rounds=[pb.SessionRound(origins=[2, 99])])
    session = read(results.Session, message)
    assert session.status is results.SessionStatus.UNKNOWN
    assert session.finish_reason is results.FinishReason.UNKNOWN
    [told] = session.rounds
    assert told.origins == (results.Origin.RECOVERED, results.Origin.UNKNOWN)
    assert told.stats.rejection_sample_method is results.Method.AUTO
