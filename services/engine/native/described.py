"""JSON files of ours that lie beside a model: read with one line for whatever is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from services.contract.errors import StartError

T = TypeVar("T")


class Kind(NamedTuple):
    """What the file's `format` and `version` must say; `whose` as in "not a drafter's"."""

    format: str
    version: int
    whose: str


def read_described(name: str, path: Path, kind: Kind, decode: Callable[[Any], T]) -> T:
    """What `decode` makes of the file's content.

    Raises StartError, one line that begins with `name`, for a file that cannot be read, is of
    another kind, or of which `decode` can make nothing.
    """
    try:
        described = json.loads(path.read_text())
        _check(kind, described)
        return decode(described)
    except OSError as error:
        raise StartError(f"{name}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StartError(f"{name}: {_reason(kind, error)}") from error


def _check(kind: Kind, described: Any) -> None:
    if described["format"] != kind.format:
        raise ValueError(f"format {described['format']!r} is not {kind.format!r}")
    if described["version"] != kind.version:
        raise ValueError(f"version {described['version']!r}; this Paceline reads {kind.version}")


def _reason(kind: Kind, error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    return str(error).splitlines()[0] if isinstance(error, ValueError) else f"not {kind.whose}"
