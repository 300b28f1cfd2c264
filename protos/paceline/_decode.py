"""From generated messages to the records of `paceline.results`, whose fields are named alike."""

from __future__ import annotations

from typing import Any

from paceline import results as r
from paceline.by_name import read


def decode_event(message: Any) -> r.Event | None:
    """The event of a GenerateResponse or ResumeResponse; None for one not known here."""
    match message.WhichOneof("event"):
        case "started":
            return _decode_started(message.started)
        case "chunk":
            return read(r.Chunk, message.chunk)
        case "complete":
            return _decode_complete(message.complete)
        case _:
            return None


def decode_scores(message: Any) -> r.Scores:
    """A ScoreResponse."""
    return read(r.Scores, message)


def decode_session(message: Any) -> r.Session:
    """A GetSessionResponse."""
    return read(r.Session, message)


def decode_model_info(message: Any) -> r.ModelInfo:
    """A GetModelInfoResponse."""
    return read(r.ModelInfo, message)


def decode_server_info(message: Any) -> r.ServerInfo:
    """A GetServerInfoResponse."""
    totals = read(r.ServerTotals, message.totals) if message.HasField("totals") else None
    return read(r.ServerInfo, message, totals=totals)


def _decode_started(message: Any) -> r.Started | r.PromptLogprobs:
    """Each one with logprobs is another one, and the first has none."""
    if not message.prompt_logprobs:
        return read(r.Started, message)
    rows = tuple(read(r.TokenLogprobs, row) for row in message.prompt_logprobs)
    return r.PromptLogprobs(message.prompt_offset, rows, message.index)


def _decode_complete(message: Any) -> r.Complete:
    stop = message.matched_stop.WhichOneof("stop")
    matched = None if stop is None else getattr(message.matched_stop, stop)
    return read(r.Complete, message, matched_stop=matched)
