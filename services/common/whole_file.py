"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to, which takes its place in the end.

    Not after an exception: then what was there is still there.
    """
    scratch = path.with_name(f".{path.name}.partial")
    yield scratch
    os.replace(scratch, path)
