"""A file that tells scripts where a process serves."""

from __future__ import annotations

from pathlib import Path


def write_line(path: Path, line: str) -> None:
    """Write whole or not at all: a reader never sees half an address."""
    partial = path.with_suffix(path.suffix + ".partial")
    partial.write_text(line + "\n")
    partial.replace(path)
