"""Checks that values from outside have a record's types; dataclasses do not check."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import isfinite
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

_R = TypeVar("_R")
_MOST = 1 << 64


def checked(record: type[_R], values: Mapping[str, Any]) -> _R:
    """The record with these values; TypeError, naming the field, for one of another type."""
    hints = _hints(record)  # type: ignore[arg-type]  # a class is hashable
    for name, value in values.items():
        hint = hints.get(name)
        if hint is None or not fits(hint, value):
            raise TypeError(f"{record.__name__} has no such {name}")
    return record(**values)


@cache
def _hints(record: type[Any]) -> Mapping[str, Any]:
    """The type of each field; cached, since it is slow to resolve."""
    return get_type_hints(record)


def fits(hint: Any, value: object) -> bool:
    """Whether a value is of a type: a class, `A | None`, `tuple[A, ...]`, `tuple[A, B]`.

    A number is finite and below 2**64; a bool is none.
    """
    if hint is float:
        return (isinstance(value, float) and isfinite(value)) or fits(int, value)
    if hint is int:
        return type(value) is int and abs(value) < _MOST
    kind, inner = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return any(fits(one, value) for one in inner)
    if kind is tuple:
        return isinstance(value, tuple) and _all_fit(inner, value)
    return isinstance(value, hint)


def _all_fit(hints: tuple[Any, ...], values: tuple[object, ...]) -> bool:
    if hints[1:] == (Ellipsis,):
        hints = hints[:1] * len(values)
    return len(hints) == len(values) and all(map(fits, hints, values))
