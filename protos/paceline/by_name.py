"""Enums and records of ours and of the wire, joined by the names of members and fields.

The one place that does it, for the client and for the servers. What is joined is worked out
once for each pair of classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import cache, partial
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

E = TypeVar("E", bound=Enum)
M = TypeVar("M", bound=Message)
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def _once(function: F) -> F:
    """`cache`, with the types of the function."""
    return cast(F, cache(function))


def names_of(wire: EnumDescriptor) -> dict[int, str]:
    """Each number's name without what the names of its enum begin with.

    `wire`: an enum whose zero is `…_UNSPECIFIED`.
    """
    prefix = wire.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {value.number: value.name.removeprefix(prefix) for value in wire.values}


def numbers_of(kind: type[E], wire: EnumDescriptor) -> dict[E, Any]:
    """The wire's number of each member of ours. Raises KeyError where it has none of that name."""
    numbers = {name: number for number, name in names_of(wire).items()}
    return {member: numbers[member.name] for member in kind}


def members_of(kind: type[E], wire: EnumDescriptor) -> dict[int, E]:
    """The member of ours of each of the wire's numbers, where there is one of that name."""
    members = kind.__members__
    return {n: members[name] for n, name in names_of(wire).items() if name in members}


def read(kind: type[T], message: Message, **given: Any) -> T:
    """A dataclass or named tuple of a message's fields of the same names, and of those given.

    So are the records within it. A number of an enum that is not known here (a newer peer's)
    reads as the first member.
    """
    taken = {
        name: getattr(message, name) if reader is None else reader(getattr(message, name))
        for name, reader in _readers(kind, message.DESCRIPTOR)
        if name not in given
    }
    return kind(**taken, **given)


def write(kind: type[M], record: Any, **given: Any) -> M:
    """A message of the fields that a record has under the same names, and of those given."""
    return kind(**fields_of(kind, record, **given))


def fields_of(kind: type[Message], record: Any, **given: Any) -> dict[str, Any]:
    """What `write` makes a message of. Another message takes this for one within it, uncopied."""
    return {name: getattr(record, name) for name in shared(kind, type(record))} | given


@_once
def shared(kind: type[Message], record: type[Any]) -> tuple[str, ...]:
    """The names that the fields of both have: of a message, and of a dataclass or named tuple."""
    known = kind.DESCRIPTOR.fields_by_name
    return tuple(name for name in get_type_hints(record) if name in known)


Reader = Callable[[Any], Any] | None
"""From a field's value in a message to ours; None = as it is."""


@_once
def _readers(kind: type[Any], wire: Any) -> tuple[tuple[str, Reader], ...]:
    known: Mapping[str, FieldDescriptor] = wire.fields_by_name
    hints = get_type_hints(kind)
    return tuple(
        (name, _reader(hint, known[name])) for name, hint in hints.items() if name in known
    )


def _reader(hint: Any, field: FieldDescriptor) -> Reader:
    if get_origin(hint) is tuple:
        each = _reader(get_args(hint)[0], field)
        return tuple if each is None else partial(_read_each, each)
    if isinstance(hint, type) and is_dataclass(hint):
        return partial(read, hint)
    if field.enum_type is None:
        return None
    return partial(_read_member, members_of(hint, field.enum_type), next(iter(hint)))


def _read_each(reader: Callable[[Any], Any], values: Any) -> tuple[Any, ...]:
    return tuple(map(reader, values))


def _read_member(members: Mapping[int, Enum], first: Enum, number: int) -> Enum:
    return members.get(number, first)
