"""Messages of any type, and what becomes of their bytes on the way.

All choices come from a `random.Random`: a seeded one makes a long run that can be
repeated, and one of hypothesis (`st.randoms`) a property that shrinks.
"""

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import Message

DEEPEST = 4
NESTED = 150
"""More levels than protobuf parses."""

_NAMES = ("", "s1", "s2", "model", "ngram", "model,ngram", "default", "tiny", "o1", "user")
_STRINGS = (*_NAMES, "\0", "a\nb", "ü😀\u202e", "{{ 7 * 7 }}", "%s%n", "../../etc", "x" * 5000)
_FLOATS = (0.0, -0.0, 1.0, 0.5, -1.0, 1e-30, 3.4e38, -3.4e38, math.inf, -math.inf, math.nan)
_BYTES = (b"", b"\0" * 4, b"\xff" * 8, b"\x00\x00\x80\x3f", b"x" * 1000)
_REPEATED = (0, 1, 1, 2, 3, 8, 70, 2000)
_WIDTHS = {
    Field.TYPE_UINT32: (0, 2**32),
    Field.TYPE_UINT64: (0, 2**64),
    Field.TYPE_FIXED64: (0, 2**64),
    Field.TYPE_SINT32: (-(2**31), 2**31),
    Field.TYPE_INT32: (-(2**31), 2**31),
    Field.TYPE_INT64: (-(2**63), 2**63),
}


def arbitrary(kind: type[Message], random: Random) -> Message:
    """Any message of a type: fields absent, usual, extreme or repeated without measure."""
    return filled(kind(), random, DEEPEST)


def filled(message: Message, random: Random, depth: int) -> Message:
    """The message with fields that were chosen anew; every other one stays as it was."""
    for field in message.DESCRIPTOR.fields:
        if random.random() < 0.5:
            _set(message, field, random, depth)
    return message


def altered(message: Message, random: Random) -> Message:
    """A copy in which one field, at any depth, is another."""
    copy = type(message)()
    copy.CopyFrom(message)
    place: Any = copy
    while inner := _messages_in(place):
        if random.random() < 0.3:
            break
        place = random.choice(inner)
    fields = place.DESCRIPTOR.fields
    if fields:
        _set(place, random.choice(list(fields)), random, DEEPEST)
    return copy


def _messages_in(message: Any) -> list[Any]:
    """The messages that stand in fields of a message."""
    found: list[Any] = []
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        found += list(value) if field.is_repeated else [value]
    return found


def _set(message: Any, field: Any, random: Random, depth: int) -> None:
    if random.random() < 0.2:
        message.ClearField(field.name)
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        _set_map(message, field, random)
    elif field.is_repeated:
        _set_repeated(message, field, random, depth)
    elif field.message_type is not None:
        if depth:
            getattr(message, field.name).SetInParent()
            filled(getattr(message, field.name), random, depth - 1)
    else:
        setattr(message, field.name, _scalar(field, random))


def _set_map(message: Any, field: Any, random: Random) -> None:
    key, value = field.message_type.fields
    entries = getattr(message, field.name)
    for _ in range(random.choice(_REPEATED)):
        if value.message_type is None:
            entries[_scalar(key, random)] = _scalar(value, random)
        else:
            # Looking at an entry makes it.
            filled(entries[_scalar(key, random)], random, 0)


def _set_repeated(message: Any, field: Any, random: Random, depth: int) -> None:
    message.ClearField(field.name)
    values, count = getattr(message, field.name), random.choice(_REPEATED)
    if field.message_type is None:
        alike = _scalar(field, random)
        values.extend(alike if i > 8 else _scalar(field, random) for i in range(count))
        return
    for _ in range(min(count, 8) if depth else 0):
        filled(values.add(), random, depth - 1)


def _scalar(field: Any, random: Random) -> Any:
    kind = field.type
    if kind in _WIDTHS:
        return _integer(*_WIDTHS[kind], random)
    if kind == Field.TYPE_ENUM:
        return random.choice([*field.enum_type.values_by_number, 7, 99, 2**31 - 1])
    if kind == Field.TYPE_BOOL:
        return random.random() < 0.5
    if kind == Field.TYPE_STRING:
        return random.choice(_STRINGS)
    if kind == Field.TYPE_BYTES:
        return random.choice(_BYTES)
    return random.choice(_FLOATS)


def _integer(low: int, high: int, random: Random) -> int:
    near = random.choice((0, 1, 2, 3, 5, 11, 12, 63, 64, 65, 300))
    return random.choice((near, near, near, low, low + 1, high - 1, high // 2))


# --- Bytes ------------------------------------------------------------------------


def mutated(data: bytes, random: Random, others: Sequence[bytes] = ()) -> bytes:
    """The bytes after one to three accidents."""
    for _ in range(random.choice((1, 1, 2, 3))):
        data = random.choice(_ACCIDENTS)(data, random, others)
    return data


def _flip(data: bytes, random: Random, _others: Sequence[bytes]) -> bytes:
    if not data:
        return b"\x08"
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]


def _cut(data: bytes, random: Random, _others: Sequence[bytes]) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _remove(data: bytes, random: Random, _others: Sequence[bytes]) -> bytes:
    start = random.randrange(len(data) + 1)
    return data[:start] + data[start + random.choice((1, 2, 8, 100)) :]


def _double(data: bytes, random: Random, _others: Sequence[bytes]) -> bytes:
    """Fields that come again: the last one counts, or they are merged."""
    return data + data[random.randrange(len(data) + 1) :]


def _splice(data: bytes, random: Random, others: Sequence[bytes]) -> bytes:
    other = random.choice(others) if others else data
    start, end = random.randrange(len(data) + 1), random.randrange(len(other) + 1)
    return data[:start] + other[end:]


def _noise(data: bytes, random: Random, _others: Sequence[bytes]) -> bytes:
    at = random.randrange(len(data) + 1)
    fresh = bytes(random.randrange(256) for _ in range(random.choice((1, 4, 16))))
    return data[:at] + fresh + data[at:]


def _nest(data: bytes, random: Random, _others: Sequence[bytes]) -> bytes:
    """Inside one field after another."""
    tag = random.choice((0x0A, 0x12, 0x1A, 0x2A, 0x32))
    for _ in range(random.choice((1, 3, NESTED))):
        data = bytes([tag]) + varint(len(data)) + data
    return data


def varint(value: int) -> bytes:
    """As protobuf writes whole numbers."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


_Accident = Callable[[bytes, Random, Sequence[bytes]], bytes]
_ACCIDENTS: tuple[_Accident, ...] = (_flip, _flip, _cut, _remove, _double, _splice, _noise, _nest)
