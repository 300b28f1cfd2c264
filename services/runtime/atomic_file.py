"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.contract.errors import StartError


def write_whole(setting: str, path: Path, text: str) -> None:
    """Write a text file; StartError, naming the setting, where it cannot be written."""
    try:
        with replacing(path) as scratch:
            scratch.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StartError(f"{setting}: cannot write {path}: {error.strerror}") from error


def write_line(path: Path, line: str) -> None:
    """Tell scripts where a process serves; they never see half an address."""
    with replacing(path) as scratch:
        scratch.write_text(line + "\n")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to, which replaces it at the end.

    After an exception the old file stays.
    """
    scratch = path.with_name(f".{path.name}.partial")
    yield scratch
    os.replace(scratch, path)
