"""From generated messages to the records of `paceline.results`.

A record's fields are named as the message's, so plain ones are copied by name.
A number that this version does not know (a newer server's) reads as unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from typing import Any, TypeVar

from paceline import results as r
from paceline.v1 import inference_pb2 as pb

_T = TypeVar("_T")
_E = TypeVar("_E", bound=Enum)


def _reader(kind: type[_E], wire: Any) -> Callable[[int], _E]:
    """From a number of the wire's enum to the member of its name; the first where none has it."""
    prefix, first = wire.Name(0).removesuffix("UNSPECIFIED"), next(iter(kind))
    numbers = {name.removeprefix(prefix): number for name, number in wire.items()}
    known = {numbers[one.name]: one for one in kind if one.name in numbers}
    return lambda number: known.get(number, first)


_finish = _reader(r.FinishReason, pb.FinishReason)
_origin = _reader(r.Origin, pb.TokenOrigin)
_source = _reader(r.DraftSource, pb.DraftSource)
_method = _reader(r.Method, pb.RejectionSampleMethod)
_status = _reader(r.SessionStatus, pb.SessionStatus)


def decode_event(message: Any) -> r.Event | None:
    """The event of a GenerateResponse or ResumeResponse; None for one not known here."""
    match message.WhichOneof("event"):
        case "started":
            return _copy(r.Started, message.started)
        case "chunk":
            return _decode_chunk(message.chunk)
        case "complete":
            return _decode_complete(message.complete)
        case _:
            return None


def decode_session(message: Any) -> r.Session:
    """A GetSessionResponse."""
    return _copy(
        r.Session,
        message,
        status=_status(message.status),
        finish_reason=_finish(message.finish_reason),
        rounds=tuple(map(_decode_session_round, message.rounds)),
    )


def _decode_session_round(message: Any) -> r.SessionRound:
    return _copy(
        r.SessionRound,
        message,
        stats=_decode_round(message.stats),
        origins=tuple(map(_origin, message.origins)),
        **{name: tuple(getattr(message, name)) for name in _REPEATED},
    )


_REPEATED = ("token_ids", "pieces", "rejected", "unjudged")


def decode_model_info(message: Any) -> r.ModelInfo:
    """A GetModelInfoResponse."""
    return _copy(r.ModelInfo, message, eos_token_ids=tuple(message.eos_token_ids))


def decode_server_info(message: Any) -> r.ServerInfo:
    """A GetServerInfoResponse."""
    workers = tuple(
        _copy(r.WorkerInfo, worker, methods=tuple(worker.methods)) for worker in message.workers
    )
    totals = _copy(r.ServerTotals, message.totals) if message.HasField("totals") else None
    return _copy(r.ServerInfo, message, workers=workers, totals=totals)


def _decode_chunk(message: Any) -> r.Chunk:
    return _copy(
        r.Chunk,
        message,
        token_ids=tuple(message.token_ids),
        logprobs=tuple(map(_decode_logprobs, message.logprobs)),
        rounds=tuple(map(_decode_round, message.rounds)),
        pieces=tuple(message.pieces),
        origins=tuple(map(_origin, message.origins)),
    )


def _decode_logprobs(message: Any) -> r.TokenLogprobs:
    return _copy(
        r.TokenLogprobs,
        message,
        top_token_ids=tuple(message.top_token_ids),
        top_logprobs=tuple(message.top_logprobs),
    )


def _decode_round(message: Any) -> r.RoundStats:
    method = _method(message.rejection_sample_method)
    return _copy(r.RoundStats, message, rejection_sample_method=method)


def _decode_complete(message: Any) -> r.Complete:
    stop = message.matched_stop.WhichOneof("stop")
    return r.Complete(
        finish_reason=_finish(message.finish_reason),
        usage=_copy(r.Usage, message.usage),
        speculation=_decode_speculation(message.speculation),
        text=message.text,
        matched_stop=None if stop is None else getattr(message.matched_stop, stop),
    )


def _decode_speculation(message: Any) -> r.SpecDecodeMetrics:
    return _copy(
        r.SpecDecodeMetrics,
        message,
        acceptance_histogram=tuple(message.acceptance_histogram),
        sources=tuple(
            _copy(r.DraftSourceMetrics, one, source=_source(one.source)) for one in message.sources
        ),
    )


def _copy(kind: type[_T], message: Any, **decoded: Any) -> _T:
    """A record with `decoded` fields, the rest taken from the message by name."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    plain = {name: getattr(message, name) for name in names if name not in decoded}
    return kind(**plain, **decoded)
