"""Domain values to client messages."""

from __future__ import annotations

import pytest
from paceline.v1 import inference_pb2 as pb

from orchestrator.core.events import Ending, RoundRecord, SourceCount
from orchestrator.frontdoor.grpc import replies
from orchestrator.session.totals import SpecTotals
from services.contract.types import FinishReason, LogprobRow, Origin, SessionStatus
from tests.orchestrator.request_kit import TOLD, make, round_record


def record(**counts: int) -> RoundRecord:
    return round_record(discarded_tokens=1, **counts)


def test_started_names_session_prompt_and_seed() -> None:
    spec = make(request_id="me")
    assert replies.started(spec) == pb.Started(
        session_id="me", prompt_tokens=len(spec.prompt), seed=7
    )


def test_a_chunk_joins_its_pieces_and_keeps_rounds_to_itself() -> None:
    rows = (LogprobRow(-0.5, (7, 9), (-0.5, -1.5)), LogprobRow(-2.0))
    chunk = replies.chunk(5, (7, 8), ("a", "é"), rows, (record(),), (Origin.ACCEPTED, Origin.BONUS))
    assert (chunk.offset, list(chunk.token_ids), chunk.text) == (5, [7, 8], "aé")
    first, second = chunk.logprobs
    assert (first.token_id, first.logprob, list(first.top_token_ids)) == (7, -0.5, [7, 9])
    assert list(first.top_logprobs) == [-0.5, -1.5]
    assert (second.token_id, second.logprob, list(second.top_token_ids)) == (8, -2.0, [])
    assert not chunk.rounds
    assert not chunk.pieces
    assert not chunk.origins


def test_rounds_pieces_and_origins_come_when_asked_for() -> None:
    origins = (Origin.ACCEPTED, Origin.RECOVERED, Origin.BONUS)
    chunk = replies.chunk(
        0, (1, 2, 3), ("a", "", "b"), (), (record(),), origins, include_rounds=True
    )
    assert list(chunk.pieces) == ["a", "", "b"]
    assert list(chunk.origins) == [1, 2, 3]
    (stats,) = chunk.rounds
    rule = pb.REJECTION_SAMPLE_METHOD_COUPLED
    expected = pb.RoundStats(index=1, rejection_sample_method=rule, discarded_tokens=1, **TOLD)
    assert stats == expected


def test_complete_sums_the_rounds() -> None:
    totals = SpecTotals()
    for drafted, accepted, emitted in ((4, 2, 3), (4, 4, 5), (0, 0, 1)):
        counts = {"accepted_tokens": accepted, "emitted_tokens": emitted}
        totals.add(record(draft_tokens=drafted, **counts))
    totals.add(record()._replace(sources=(SourceCount(3, 3, 1), SourceCount(1, 1, 1))))
    ending = Ending(FinishReason.STOP, matched_text="END")
    message = replies.complete(ending, 10, 9, "text", totals, cached_tokens=2)
    assert message.finish_reason == pb.FINISH_REASON_STOP
    assert message.usage == pb.Usage(prompt_tokens=10, completion_tokens=9, cached_tokens=2)
    assert message.matched_stop.text == "END"
    metrics = message.speculation
    assert (metrics.num_spec_steps, metrics.num_target_steps) == (3, 4)
    assert (metrics.num_draft_tokens, metrics.num_accepted_draft_tokens) == (12, 8)
    assert metrics.mean_acceptance_length == pytest.approx(1 + 8 / 3)
    assert metrics.draft_acceptance_rate == pytest.approx(2 / 3)
    assert list(metrics.acceptance_histogram) == [0, 0, 2, 0, 1]
    assert metrics.block_efficiency == 3.0
    assert [
        (one.source, one.num_draft_tokens, one.num_accepted_draft_tokens) for one in metrics.sources
    ] == [(pb.DRAFT_SOURCE_THIS_TEXT, 1, 1), (pb.DRAFT_SOURCE_LAWS, 3, 1)]


def test_a_session_without_rounds_has_zero_metrics() -> None:
    message = replies.complete(Ending(FinishReason.ABORT), 1, 0, "", SpecTotals())
    assert message.speculation == pb.SpecDecodeMetrics()
    assert not message.HasField("matched_stop")


def test_a_stop_token_is_named_even_when_its_id_is_zero() -> None:
    ending = Ending(FinishReason.STOP, matched_token=0)
    message = replies.complete(ending, 1, 1, "", SpecTotals())
    assert message.matched_stop.WhichOneof("stop") == "token_id"


@pytest.mark.parametrize("kind", [pb.GenerateResponse, pb.ResumeResponse])
@pytest.mark.parametrize("event", [pb.Started(), pb.Chunk(), pb.Complete()])
def test_every_event_fits_both_streams(kind: type, event: replies.Event) -> None:
    response = replies.respond(kind, event)
    assert response.WhichOneof("event") == type(event).__name__.lower()


def test_every_enum_member_has_its_message_value() -> None:
    assert {replies.finish_reason(reason) for reason in FinishReason} == {1, 2, 3}
    assert replies.finish_reason(None) == 0
    assert {replies.session_status(status) for status in SessionStatus} == {1, 2, 3, 4}
