"""Domain values to client messages."""

from __future__ import annotations

import pytest
from paceline.v1 import inference_pb2 as pb

from orchestrator.frontdoor.grpc import replies
from orchestrator.session.answer import Chunk, Complete, Event, Started
from orchestrator.session.totals import SpecTotals
from orchestrator.steering.rounds import Ending, SourceCount
from services.contract.types import FinishReason, LogprobRow, Origin
from tests.orchestrator.request_kit import TOLD, round_record


def said(event: Event) -> pb.GenerateResponse:
    return replies.respond(pb.GenerateResponse, event)


def complete(ending: Ending, totals: SpecTotals | None = None) -> Complete:
    return Complete(ending, "text", totals or SpecTotals(), 10, 9, cached_tokens=2)


def test_started_names_session_prompt_and_seed() -> None:
    assert said(Started("me", 3, 7)).started == pb.Started(session_id="me", prompt_tokens=3, seed=7)


def test_each_token_of_a_chunk_has_its_logprobs() -> None:
    rows = (LogprobRow(-0.5, (7, 9), (-0.5, -1.5)), LogprobRow(-2.0))
    chunk = said(Chunk(5, (7, 8), "aé", rows)).chunk
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
    chunk = said(Chunk(0, (1, 2, 3), "ab", (), (round_record(),), ["a", "", "b"], origins)).chunk
    assert list(chunk.pieces) == ["a", "", "b"]
    assert list(chunk.origins) == [1, 2, 3]
    (stats,) = chunk.rounds
    assert stats == pb.RoundStats(
        index=1,
        rejection_sample_method=pb.REJECTION_SAMPLE_METHOD_COUPLED,
        **TOLD,
    )


def test_complete_sums_the_rounds() -> None:
    totals = SpecTotals()
    for one in (
        round_record(),
        round_record(accepted_tokens=4, emitted_tokens=5),
        round_record(draft_tokens=0, accepted_tokens=0, emitted_tokens=1),
        round_record(sources=(SourceCount(3, 3, 1), SourceCount(1, 1, 1))),
    ):
        totals.add(one)
    ending = Ending(FinishReason.STOP, "END")
    message = said(complete(ending, totals)).complete
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
    message = said(complete(Ending(FinishReason.ABORT))).complete
    assert message.speculation == pb.SpecDecodeMetrics()
    assert not message.HasField("matched_stop")


def test_a_stop_token_is_named_even_when_its_id_is_zero() -> None:
    message = said(complete(Ending(FinishReason.STOP, 0))).complete
    assert message.matched_stop.WhichOneof("stop") == "token_id"


@pytest.mark.parametrize("kind", [pb.GenerateResponse, pb.ResumeResponse])
@pytest.mark.parametrize(
    "event", [Started("s", 1, 7), Chunk(0, (1,), "a"), complete(Ending(FinishReason.LENGTH))]
)
def test_every_event_fits_both_streams(kind: type, event: Event) -> None:
    response = replies.respond(kind, event)
    assert response.WhichOneof("event") == type(event).__name__.lower()
