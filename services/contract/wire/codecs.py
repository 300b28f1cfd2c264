"""One value per link: how its messages are made of batches and taken apart.

The two ends of a link (the servicer of a worker, the orchestrator's end) are
written once, against `Codec`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from paceline.v1 import drafter_pb2, verifier_pb2

from services.contract.errors import ProtocolError
from services.contract.states import state_bytes, states_of, without_states
from services.contract.types import (
    DrafterCommand,
    DrafterEvent,
    LinkHello,
    VerifierCommand,
    VerifierEvent,
)
from services.contract.wire.drafter import (
    decode_drafter_command,
    decode_drafter_event,
    encode_drafter_command,
    encode_drafter_event,
)
from services.contract.wire.records import decode_hello, encode_hello
from services.contract.wire.verifier import (
    decode_verifier_command,
    decode_verifier_event,
    encode_verifier_command,
    encode_verifier_event,
)

C = TypeVar("C")
E = TypeVar("E")
M = TypeVar("M")

MOST_IN_MESSAGE = 65_536
"""Commands or events in one message: as many as ever wait to be sent."""
MESSAGE_BYTES = 8 << 20
"""A batch that is larger leaves in several messages, far below what a peer still takes."""
STATES_BYTES = 256 << 10
"""The same for states alone: memory for larger messages comes fresh from the system each time."""


class Codec(Protocol[C, E]):
    """What both ends of a link need: batches into messages, and back."""

    def encode_request(self, commands: Sequence[C] = (), hello: LinkHello | None = None) -> Any:
        """One message of the orchestrator; `hello` in the first only."""

    def requests(self, commands: Sequence[C], /) -> Iterator[Any]:
        """Messages of the orchestrator, none too large."""

    def decode_request(self, message: Any, /) -> tuple[LinkHello | None, list[C]]:
        """The hello, if there is one, and the commands in the order to absorb them."""

    def encode_response(self, events: Sequence[E], /) -> Any:
        """One message of the worker."""

    def responses(self, events: Sequence[E], /) -> Iterator[Any]:
        """Messages of the worker, none too large."""

    def decode_response(self, message: Any, /) -> list[E]:
        """The events in the order to absorb them."""


@dataclass(frozen=True, slots=True)
class LinkCodec(Generic[C, E]):
    """Batches of commands `C` one way, batches of events `E` the other.

    Decoding raises `ProtocolError` for the whole batch when one member is bad.
    """

    request_class: type[Any]
    response_class: type[Any]
    encode_command: Callable[[C], Any]
    decode_command: Callable[[Any], C]
    encode_event: Callable[[E], Any]
    decode_event: Callable[[Any], E]

    def encode_request(self, commands: Sequence[C] = (), hello: LinkHello | None = None) -> Any:
        """One message of the orchestrator; `hello` in the first only."""
        bare, states = _apart(commands)
        message = self.request_class(
            hello=None if hello is None else encode_hello(hello),
            commands=[self.encode_command(command) for command in bare],
        )
        _put_states(message.commands, "command", states)
        return message

    def requests(self, commands: Sequence[C]) -> Iterator[Any]:
        """Messages of the orchestrator; see `in_messages`."""
        return in_messages(self.encode_request, commands)

    def decode_request(self, message: Any) -> tuple[LinkHello | None, list[C]]:
        """The hello, if there is one, and the commands."""
        require_few(message.commands)
        hello = decode_hello(message.hello) if message.HasField("hello") else None
        return hello, [self.decode_command(command) for command in message.commands]

    def encode_response(self, events: Sequence[E]) -> Any:
        """One message of the worker."""
        bare, states = _apart(events)
        message = self.response_class(events=[self.encode_event(event) for event in bare])
        _put_states(message.events, "event", states)
        return message

    def responses(self, events: Sequence[E]) -> Iterator[Any]:
        """Messages of the worker; see `in_messages`."""
        return in_messages(self.encode_response, events)

    def decode_response(self, message: Any) -> list[E]:
        """The events."""
        require_few(message.events)
        return [self.decode_event(event) for event in message.events]


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


def _apart(batch: Sequence[M]) -> tuple[Sequence[M], list[bytes]]:
    """The batch without states, and those of each."""
    states = [states_of(one) for one in batch]
    return [without_states(one) for one in batch] if any(states) else batch, states


def _put_states(encoded: Sequence[Any], group: str, states: Sequence[bytes]) -> None:
    """Copy states to where they leave from: a message put into another one is copied twice."""
    for place, one in enumerate(states):
        if one:
            slot = encoded[place]
            getattr(slot, slot.WhichOneof(group)).states = one


def require_few(batch: Sequence[Any]) -> None:
    """Refuse a message of more than ever wait to be sent."""
    if len(batch) > MOST_IN_MESSAGE:
        raise ProtocolError(f"{len(batch)} in one message; at most {MOST_IN_MESSAGE}")


DRAFTER_LINK: LinkCodec[DrafterCommand, DrafterEvent] = LinkCodec(
    drafter_pb2.DrafterServiceLinkRequest,
    drafter_pb2.DrafterServiceLinkResponse,
    encode_drafter_command,
    decode_drafter_command,
    encode_drafter_event,
    decode_drafter_event,
)
VERIFIER_LINK: LinkCodec[VerifierCommand, VerifierEvent] = LinkCodec(
    verifier_pb2.VerifierServiceLinkRequest,
    verifier_pb2.VerifierServiceLinkResponse,
    encode_verifier_command,
    decode_verifier_command,
    encode_verifier_event,
    decode_verifier_event,
)
