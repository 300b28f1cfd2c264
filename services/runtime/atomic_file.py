"""Files that are written whole or not at all, and small ones that are read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.contract.errors import StartError

MOST_BYTES = 1 << 20
"""No certificate, list of tokens, schema or file of flags is larger."""


def read_bytes(setting: str, path: Path) -> bytes:
    """A small file's content; StartError, naming the setting, when it cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise StartError(f"{setting}: cannot read {path}: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise StartError(f"{setting}: {path}: larger than {MOST_BYTES} bytes")
    return content


def read_text(setting: str, path: Path) -> str:
    """The same, of what is text in UTF-8."""
    try:
        return read_bytes(setting, path).decode("utf-8")
    except UnicodeDecodeError:
        raise StartError(f"{setting}: {path} is not text in UTF-8") from None


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
