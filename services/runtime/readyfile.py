"""A file that tells scripts where a process serves."""

from __future__ import annotations

from pathlib import Path

from services.runtime.atomic_file import replacing


def write_line(path: Path, line: str) -> None:
    """Write whole or not at all: a reader never sees half an address."""
    with replacing(path) as partial:
        partial.write_text(line + "\n")
