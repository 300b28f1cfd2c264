"""Domain values to the messages that a client reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from paceline.by_name import numbers_of, write
from paceline.v1 import inference_pb2 as pb

from orchestrator.core.events import Ending, RoundRecord
from orchestrator.frontdoor.requests import SessionSpec
from orchestrator.session.totals import SpecTotals
from services.contract.types import FinishReason, LogprobRow, Origin, SessionStatus, VerifyMode

Event = pb.Started | pb.Chunk | pb.Complete
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
        case pb.Started():
            return kind(started=event)
        case pb.Chunk():
            return kind(chunk=event)
        case _:
            return kind(complete=event)


def started(spec: SessionSpec) -> pb.Started:
    """The first event of every stream."""
    return pb.Started(session_id=spec.session, prompt_tokens=len(spec.prompt), seed=spec.seed)


def chunk(
    offset: int,
    token_ids: Sequence[int],
    pieces: Sequence[str],
    logprobs: Sequence[LogprobRow] = (),
    rounds: Sequence[RoundRecord] = (),
    origins: Sequence[Origin] = (),
    include_rounds: bool = False,
) -> pb.Chunk:
    """Tokens that follow output[:offset], one piece of text for each.

    `logprobs` and `origins` have one entry per token, or none. Rounds, pieces
    and origins go out only with `include_rounds`.
    """
    message = pb.Chunk(offset=offset, token_ids=token_ids, text="".join(pieces))
    message.logprobs.extend(map(_logprobs, token_ids, logprobs))
    if include_rounds:
        message.rounds.extend(map(round_stats, rounds))
        message.pieces.extend(pieces)
        message.origins.extend(NUMBERS[origin] for origin in origins)
    return message


def complete(
    ending: Ending,
    prompt_tokens: int,
    completion_tokens: int,
    text: str,
    totals: SpecTotals,
    cached_tokens: int = 0,
) -> pb.Complete:
    """The last event of a stream that reached its end."""
    return pb.Complete(
        finish_reason=NUMBERS[ending.reason],
        usage=pb.Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cached_tokens=cached_tokens,
        ),
        speculation=metrics(totals),
        text=text,
        matched_stop=_matched_stop(ending),
    )


def metrics(totals: SpecTotals) -> pb.SpecDecodeMetrics:
    """A session's sums, under the names that vLLM uses."""
    return pb.SpecDecodeMetrics(
        num_spec_steps=totals.spec_steps,
        num_draft_tokens=totals.drafted,
        num_accepted_draft_tokens=totals.accepted,
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


def server_totals(totals: SpecTotals) -> pb.ServerTotals:
    """The sums of all sessions of an orchestrator."""
    return pb.ServerTotals(
        target_steps=totals.target_steps,
        draft_tokens=totals.drafted,
        accepted_tokens=totals.accepted,
        emitted_tokens=totals.emitted,
    )


def round_stats(record: RoundRecord) -> pb.RoundStats:
    """One round, as the client sees it."""
    rule = NUMBERS[record.mode]
    return write(pb.RoundStats, record, index=record.round, rejection_sample_method=rule)


def _logprobs(token_id: int, row: LogprobRow) -> pb.TokenLogprobs:
    return pb.TokenLogprobs(
        token_id=token_id,
        logprob=row.logprob,
        top_token_ids=row.top_token_ids,
        top_logprobs=row.top_logprobs,
    )


def _matched_stop(ending: Ending) -> pb.MatchedStop | None:
    if ending.matched_text:
        return pb.MatchedStop(text=ending.matched_text)
    if ending.matched_token is not None:
        return pb.MatchedStop(token_id=ending.matched_token)
    return None
