"""Enums of the wire and ours, joined by the names of their members."""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeVar

E = TypeVar("E", bound=Enum)


def names_of(wire: Any) -> dict[int, str]:
    """Each number's name without what the names of its enum begin with.

    `wire`: a generated enum, whose zero is `…_UNSPECIFIED`.
    """
    prefix = wire.Name(0).removesuffix("UNSPECIFIED")
    return {number: name.removeprefix(prefix) for name, number in wire.items()}


def numbers_of(kind: type[E], wire: Any) -> dict[E, Any]:
    """The wire's number of each member of ours. Raises KeyError where it has none of that name."""
    numbers = {name: number for number, name in names_of(wire).items()}
    return {member: numbers[member.name] for member in kind}
