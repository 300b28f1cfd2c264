"""Domain values to the messages that a client reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from paceline.v1 import inference_pb2 as pb

from orchestrator.core.events import Ending, RoundRecord
from orchestrator.frontdoor.requests import SessionSpec
from orchestrator.session.totals import SpecTotals
from services.contract.types import FinishReason, LogprobRow, Origin, SessionStatus, VerifyMode
from services.contract.wire.enums import numbers_of

Event = pb.Started | pb.Chunk | pb.Complete
_R = TypeVar("_R", pb.GenerateResponse, pb.ResumeResponse)

_FINISH: dict[FinishReason, pb.FinishReason] = numbers_of(FinishReason, pb.FinishReason)
_ORIGIN: dict[Origin, pb.TokenOrigin] = numbers_of(Origin, pb.TokenOrigin)
_RULE: dict[VerifyMode, pb.RejectionSampleMethod] = numbers_of(VerifyMode, pb.RejectionSampleMethod)
_STATUS: dict[SessionStatus, pb.SessionStatus] = numbers_of(SessionStatus, pb.SessionStatus)
_TOLD = pb.RoundStats.DESCRIPTOR.fields_by_name
_OF_ROUND = [name for name in RoundRecord._fields if name in _TOLD]


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
        message.origins.extend(_ORIGIN[origin] for origin in origins)
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
        finish_reason=finish_reason(ending.reason),
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
    return pb.RoundStats(
        index=record.round,
        rejection_sample_method=_RULE[record.mode],
        **{name: getattr(record, name) for name in _OF_ROUND},
    )


def origin(origin: Origin) -> pb.TokenOrigin:
    """Where a token came from."""
    return _ORIGIN[origin]


def rule(mode: VerifyMode) -> pb.RejectionSampleMethod:
    """How draft tokens were verified."""
    return _RULE[mode]


def finish_reason(reason: FinishReason | None) -> pb.FinishReason:
    """Why a session ended; unspecified while it has not."""
    return pb.FINISH_REASON_UNSPECIFIED if reason is None else _FINISH[reason]


def session_status(status: SessionStatus) -> pb.SessionStatus:
    """What a stored session is doing."""
    return _STATUS[status]


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
