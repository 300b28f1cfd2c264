"""What both links share: enums, sampling, descriptions, progress."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from google.protobuf.message import Message
from paceline.by_name import read, write
from paceline.v1 import types_pb2 as pb

from services.contract.errors import ProtocolError
from services.contract.format_markers import marker_problem
from services.contract.types import (
    Draining,
    FormatKind,
    FormatMarker,
    LinkHello,
    Progress,
    ResolvedSampling,
    ResponseFormat,
    Role,
    WorkerDescription,
)

LONGEST_NAME = 1024
"""Characters of a name: more than a tenant's and a session's together."""
LONGEST_REASON = 300
"""Characters of a failure's reason that are kept."""
LONGEST_MS = 1e9
"""Eleven days."""

_E = TypeVar("_E", bound=Enum)


def decode_enum(kind: type[_E], value: object, field: str) -> _E:
    """The member of `kind` with `value`; the numbers of both sides are the same."""
    member: _E | None = _members(kind).get(value)
    if member is None:
        raise ProtocolError(f"{field}: unknown {kind.__name__} {value!r}")
    return member


def known_enum(kind: type[_E], value: object, otherwise: _E) -> _E:
    """The same; `otherwise` for a value that only newer peers know, or for none."""
    member: _E = _members(kind).get(value, otherwise)
    return member


@cache
def _members(kind: type[Enum]) -> dict[object, Any]:
    """By their values: an enum takes twice as long to look one up."""
    return {member.value: member for member in kind}


def require_name(value: str, field: str) -> str:
    """`value`, which enters logs, unless it is empty, too long or not printable."""
    if not value:
        raise ProtocolError(f"{field} is empty")
    if len(value) > LONGEST_NAME or not value.isprintable():
        raise ProtocolError(f"{field} is no printable name of at most {LONGEST_NAME} characters")
    return value


def require_ms(value: float, field: str) -> float:
    """A duration: not negative and not endless. What is learned from it lasts."""
    if not 0 <= value < LONGEST_MS:
        raise ProtocolError(f"{field}: {value} is no duration")
    return value


def require_message(message: Message, field: str) -> None:
    """Refuse a message that lacks its sub-message `field`."""
    if not message.HasField(field):
        raise ProtocolError(f"{type(message).__name__}.{field} is missing")


# --- Sampling ------------------------------------------------------------------


def encode_sampling(sampling: ResolvedSampling) -> pb.ResolvedSampling:
    """Values leave as float32, which is what every worker computes with."""
    return write(
        pb.ResolvedSampling,
        sampling,
        logit_bias=dict(sampling.logit_bias),
        response_format=_encode_format(sampling.response_format),
        bad_words=[pb.TokenSequence(token_ids=word) for word in sampling.bad_words],
    )


def decode_sampling(message: pb.ResolvedSampling) -> ResolvedSampling:
    """`logit_bias` comes out sorted by token id: maps have no order on the wire."""
    return read(
        ResolvedSampling,
        message,
        logit_bias=tuple(sorted(message.logit_bias.items())),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        response_format=_decode_format(message),
        bad_words=tuple(tuple(word.token_ids) for word in message.bad_words),
        prompt_logprobs=message.prompt_logprobs if message.HasField("prompt_logprobs") else None,
    )


def _encode_format(wanted: ResponseFormat | None) -> pb.ResponseFormat | None:
    if wanted is None:
        return None
    start = None if wanted.start is None else _encode_marker(wanted.start)
    if wanted.kind is FormatKind.CHOICE:
        options = pb.ResponseFormat.Options(options=wanted.source)
        return pb.ResponseFormat(choice=options, start=start)
    source: dict[str, Any] = {wanted.kind.value: wanted.source[0]}
    return pb.ResponseFormat(**source, start=start)


def _encode_marker(start: FormatMarker) -> pb.FormatMarker:
    if start.text:
        return pb.FormatMarker(text=start.text)
    return pb.FormatMarker(token_ids=pb.FormatMarker.Ids(ids=start.token_ids))


def _decode_format(message: pb.ResolvedSampling) -> ResponseFormat | None:
    if not message.HasField("response_format"):
        return None
    wanted = read_format(message.response_format, "format")
    if wanted is None:
        raise ProtocolError("sampling.response_format: of no kind that is known here")
    if not message.response_format.HasField("start"):
        return wanted
    start = message.response_format.start
    marker = FormatMarker(start.text, tuple(start.token_ids.ids))
    if complaint := marker_problem(marker):
        raise ProtocolError(f"sampling.response_format.start: {complaint}")
    return replace(wanted, start=marker)


def read_format(message: Any, oneof: str) -> ResponseFormat | None:
    """The format in a message's `oneof`, whose fields are named after the kinds; None: none."""
    kind = message.WhichOneof(oneof)
    if kind is None:
        return None
    source = message.choice.options if kind == "choice" else [getattr(message, kind)]
    return ResponseFormat(FormatKind(kind), tuple(source))


# --- Workers -------------------------------------------------------------------


def encode_description(worker: WorkerDescription) -> pb.WorkerDescription:
    """The answer to Describe."""
    return write(pb.WorkerDescription, worker, role=worker.role.value)


def decode_description(message: pb.WorkerDescription) -> WorkerDescription:
    """The worker needs an id, a known role and an ordered range of protocols."""
    if message.protocol_min > message.protocol_max:
        raise ProtocolError("worker.protocol_min is above protocol_max")
    return read(
        WorkerDescription,
        message,
        worker_id=require_name(message.worker_id, "worker.worker_id"),
        role=decode_enum(Role, message.role, "worker.role"),
    )


def encode_hello(hello: LinkHello) -> pb.LinkHello:
    """First message of a link."""
    return pb.LinkHello(orchestrator_id=hello.orchestrator_id, protocol=hello.protocol)


def decode_hello(message: pb.LinkHello) -> LinkHello:
    """The orchestrator needs an id."""
    return LinkHello(require_name(message.orchestrator_id, "hello.id"), message.protocol)


def encode_progress(progress: Progress) -> pb.Progress:
    """How busy a worker is."""
    return write(pb.Progress, progress)


def decode_progress(message: pb.Progress) -> Progress:
    """Any counts will do."""
    times = ("step_ms", "oldest_command_ms", "turn_ms")
    return read(
        Progress,
        message,
        **{name: require_ms(getattr(message, name), f"progress.{name}") for name in times},
    )


def encode_draining(draining: Draining) -> pb.Draining:
    """The worker stops taking sessions."""
    return pb.Draining(deadline_ms=draining.deadline_ms)


def decode_draining(message: pb.Draining) -> Draining:
    """Any deadline will do."""
    return Draining(message.deadline_ms)
