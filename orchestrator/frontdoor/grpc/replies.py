"""Domain values to the messages that a client reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, TypeVar

from paceline.by_name import fields_of, numbers_of, write
from paceline.v1 import inference_pb2 as pb

from orchestrator.frontdoor.requests import ScoreSpec
from orchestrator.session.answer import Chunk, Complete, Event, SessionRound, Started
from orchestrator.session.logprobs import PackedRow, unpack_row
from orchestrator.session.totals import SpecTotals
from orchestrator.steering.rounds import Ending, RoundRecord
from services.contract.types import FinishReason, LogprobRow, Origin, SessionStatus, VerifyMode

_R = TypeVar("_R", pb.GenerateResponse, pb.ResumeResponse)

NUMBERS: dict[Any, Any] = {
    None: 0,
    **numbers_of(FinishReason, pb.FinishReason.DESCRIPTOR),
    **numbers_of(Origin, pb.TokenOrigin.DESCRIPTOR),
    **numbers_of(SessionStatus, pb.SessionStatus.DESCRIPTOR),
    **numbers_of(VerifyMode, pb.RejectionSampleMethod.DESCRIPTOR),
}
"""What the wire has for each member of our enums; unspecified for none."""


def respond(kind: type[_R], event: Event) -> _R:
    """The event in the response of the method that streams it."""
    match event:
        case Chunk():
            return kind(chunk=_chunk(event))
        case Started():
            return kind(started=_started(event))
        case Complete():
            return kind(complete=_complete(event))


def scores(spec: ScoreSpec, rows: Sequence[Sequence[PackedRow]]) -> pb.ScoreResponse:
    """The answer to a request to score."""
    each = map(_score, spec.continuations, rows, repeat(spec.top))
    return pb.ScoreResponse(context_tokens=len(spec.context), scores=list(each))


def _score(ids: Sequence[int], packed: Sequence[PackedRow], top: int) -> pb.ContinuationScore:
    rows = list(map(unpack_row, packed))
    shown = [
        replace(row, top_token_ids=row.top_token_ids[:top], top_logprobs=row.top_logprobs[:top])
        for row in rows
    ]
    return pb.ContinuationScore(
        tokens=list(map(_logprobs, ids, shown)),
        logprob=math.fsum(row.logprob for row in rows),
        is_greedy=all(
            row.top_token_ids[:1] == (token,) for token, row in zip(ids, rows, strict=True)
        ),
    )


def _started(started: Started) -> pb.Started:
    rows = list(map(_logprobs, started.prompt_ids, started.prompt_logprobs))
    return write(pb.Started, started, index=started.completion, prompt_logprobs=rows)


def _chunk(chunk: Chunk) -> dict[str, Any]:
    """The fields of a `pb.Chunk`; an empty list costs as much as a short one."""
    fields: dict[str, Any] = {
        "offset": chunk.offset,
        "token_ids": chunk.token_ids,
        "text": chunk.text,
    }
    if chunk.logprobs:
        fields["logprobs"] = list(map(_logprobs, chunk.token_ids, chunk.logprobs))
    if chunk.rounds:
        fields["rounds"] = list(map(_round_stats, chunk.rounds))
    if chunk.pieces:
        fields["pieces"] = chunk.pieces
    if chunk.completion:
        fields["index"] = chunk.completion
    if chunk.origins:
        fields["origins"] = [NUMBERS[origin] for origin in chunk.origins]
    return fields


def _complete(complete: Complete) -> pb.Complete:
    ending = complete.ending
    return pb.Complete(
        finish_reason=NUMBERS[ending.reason],
        usage=write(pb.Usage, complete),
        speculation=_metrics(complete.totals),
        text=complete.text,
        matched_stop=_matched_stop(ending),
        index=complete.completion,
    )


def _metrics(totals: SpecTotals) -> pb.SpecDecodeMetrics:
    """A session's sums, under the names that vLLM uses."""
    return pb.SpecDecodeMetrics(
        num_spec_steps=totals.spec_steps,
        num_draft_tokens=totals.draft_tokens,
        num_accepted_draft_tokens=totals.accepted_tokens,
        mean_acceptance_length=totals.mean_acceptance_length,
        draft_acceptance_rate=totals.draft_acceptance_rate,
        acceptance_histogram=totals.histogram,
        num_target_steps=totals.target_steps,
        block_efficiency=totals.block_efficiency,
        sources=[
            pb.DraftSourceMetrics(
                source=source,  # type: ignore[arg-type]
                num_draft_tokens=drafted,
                num_accepted_draft_tokens=accepted,
            )
            for source, (drafted, accepted) in sorted(totals.by_source.items())
        ],
    )


def session_round(one: SessionRound) -> pb.SessionRound:
    """One round as the store keeps it, with the text of its tokens."""
    return write(
        pb.SessionRound,
        one,
        offset=one.record.base_len,
        started_unix_ms=round(1e3 * one.record.started_at, 2),
        stats=_round_stats(one.record),
        origins=[NUMBERS[origin] for origin in one.origins],
    )


def _round_stats(record: RoundRecord) -> dict[str, Any]:
    """The fields of a `pb.RoundStats`."""
    rule = NUMBERS[record.mode]
    return fields_of(pb.RoundStats, record, index=record.round, rejection_sample_method=rule)


def _logprobs(token_id: int, row: LogprobRow) -> dict[str, Any]:
    """The fields of a `pb.TokenLogprobs`."""
    return fields_of(pb.TokenLogprobs, row, token_id=token_id)


def _matched_stop(ending: Ending) -> pb.MatchedStop | None:
    match ending.matched:
        case str(text) if text:
            return pb.MatchedStop(text=text)
        case int(token):
            return pb.MatchedStop(token_id=token)
    return None
