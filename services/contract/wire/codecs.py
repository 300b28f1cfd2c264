"""One value per link: how its messages are made of batches and taken apart.

The two ends of a link (the servicer of a worker, the orchestrator's end) are
written once, against `Codec`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from paceline.worker.v1 import drafter_pb2, verifier_pb2

from services.contract.errors import ProtocolError
from services.contract.frames import DraftFrame, Grants, StepFrame
from services.contract.states import state_bytes
from services.contract.types import LinkHello
from services.contract.wire.frames import (
    put_draft,
    put_grants,
    put_step,
    take_draft,
    take_grants,
    take_step,
)
from services.contract.wire.messages import (
    DRAFTER_COMMANDS,
    DRAFTER_EVENTS,
    VERIFIER_COMMANDS,
    VERIFIER_EVENTS,
    Kind,
)
from services.contract.wire.records import decode_hello, encode_hello
from services.contract.worker_messages import (
    DrafterCommand,
    DrafterEvent,
    PromptScores,
    TextStates,
    VerifierCommand,
    VerifierEvent,
)

C = TypeVar("C")
E = TypeVar("E")

MOST_IN_MESSAGE = 65_536
"""Commands or events in one message: as many as ever wait to be sent."""
MESSAGE_BYTES = 8 << 20
"""A batch that is larger leaves in several messages, far below what a peer still takes."""
STATES_BYTES = 256 << 10
"""The same for states alone: memory for larger messages comes fresh from the system each time."""


class Part(NamedTuple):
    """A repeated field of a link's message: the records it holds, and both ways."""

    field: str
    kinds: frozenset[type[Any]]
    put: Callable[[Any, Any], None]
    take: Callable[[Any], Any]


def _singles(field: str, group: str, kinds: dict[type[Any], Kind]) -> Part:
    """What is said of single sessions: `group` is the oneof of the field's messages."""
    readers = {kind.name: kind.read for kind in kinds.values()}

    def put(slots: Any, record: Any) -> None:
        kind = kinds[type(record)]
        slots.add(**{kind.name: kind.write(record)})

    def take(message: Any) -> Any:
        name = message.WhichOneof(group)
        if name is None:
            raise ProtocolError(f"{type(message).__name__} holds none of {', '.join(readers)}")
        return readers[name](getattr(message, name))

    return Part(field, frozenset(kinds), put, take)


def _frames(field: str, kind: type[Any], put: Any, take: Any) -> Part:
    return Part(field, frozenset({kind}), put, take)


_STEPS = _frames("steps", StepFrame, put_step, take_step)
_DRAFTS = _frames("drafts", DraftFrame, put_draft, take_draft)
_GRANTS = _frames("grants", Grants, put_grants, take_grants)


@dataclass(frozen=True, slots=True)
class Codec(Generic[C, E]):
    """Commands `C` one way, events `E` the other, both with frames among them.

    A batch arrives in the order of the message's parts, and within each in its own. Decoding
    raises `ProtocolError` for the whole message when one member is bad.
    """

    request_class: type[Any]
    response_class: type[Any]
    request: tuple[Part, ...]
    response: tuple[Part, ...]

    def encode_request(self, commands: Sequence[C] = (), hello: LinkHello | None = None) -> Any:
        """One message of the orchestrator; `hello` in the first only."""
        message = self.request_class(hello=None if hello is None else encode_hello(hello))
        _put(message, self.request, commands)
        return message

    def requests(self, commands: Sequence[C]) -> Iterator[Any]:
        """Messages of the orchestrator; see `in_messages`."""
        return in_messages(self.encode_request, commands)

    def decode_request(self, message: Any) -> tuple[LinkHello | None, list[C]]:
        """The hello, if there is one, and the commands."""
        hello = decode_hello(message.hello) if message.HasField("hello") else None
        return hello, _take(message, self.request)

    def encode_response(self, events: Sequence[E]) -> Any:
        """One message of the worker."""
        message = self.response_class()
        _put(message, self.response, events)
        return message

    def responses(self, events: Sequence[E]) -> Iterator[Any]:
        """Messages of the worker; see `in_messages`. No step overtakes what is told of a text."""
        for batch in _before_steps(events):
            yield from in_messages(self.encode_response, batch)

    def decode_response(self, message: Any) -> list[E]:
        """The events."""
        return _take(message, self.response)


def in_messages(encode: Callable[[Sequence[Any]], Any], batch: Sequence[Any]) -> Iterator[Any]:
    """The batch in its order, in one message or as many as keep each below MESSAGE_BYTES.

    Or below STATES_BYTES, by the target's states alone.
    """
    if len(batch) > 1 and sum(map(state_bytes, batch)) > STATES_BYTES:
        middle = len(batch) // 2
        yield from in_messages(encode, batch[:middle])
        yield from in_messages(encode, batch[middle:])
        return
    message = encode(batch)
    if len(batch) == 1 or message.ByteSize() <= MESSAGE_BYTES:
        yield message
        return
    middle = len(batch) // 2
    yield from in_messages(encode, batch[:middle])
    yield from in_messages(encode, batch[middle:])


def _before_steps(events: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """The batch, cut where a step follows states or scores: steps come first in a message."""
    first, told = 0, False
    for place, event in enumerate(events):
        if told and isinstance(event, StepFrame):
            yield events[first:place]
            first, told = place, False
        told = told or isinstance(event, TextStates | PromptScores)
    yield events[first:]


def _put(message: Any, parts: Sequence[Part], batch: Sequence[Any]) -> None:
    for part in parts:
        slots = getattr(message, part.field)
        for record in batch:
            if type(record) in part.kinds:
                part.put(slots, record)


def _take(message: Any, parts: Sequence[Part]) -> list[Any]:
    for part in parts:
        if (count := len(getattr(message, part.field))) > MOST_IN_MESSAGE:
            raise ProtocolError(f"{count} in one message; at most {MOST_IN_MESSAGE}")
    return [part.take(own) for part in parts for own in getattr(message, part.field)]


VERIFIER_LINK: Codec[VerifierCommand, VerifierEvent] = Codec(
    verifier_pb2.VerifierServiceLinkRequest,
    verifier_pb2.VerifierServiceLinkResponse,
    (_singles("commands", "command", VERIFIER_COMMANDS), _GRANTS, _DRAFTS),
    (_STEPS, _singles("events", "event", VERIFIER_EVENTS)),
)
DRAFTER_LINK: Codec[DrafterCommand, DrafterEvent] = Codec(
    drafter_pb2.DrafterServiceLinkRequest,
    drafter_pb2.DrafterServiceLinkResponse,
    (_singles("commands", "command", DRAFTER_COMMANDS), _STEPS),
    (_singles("events", "event", DRAFTER_EVENTS), _DRAFTS),
)
