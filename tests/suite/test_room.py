"""Where tests cannot write what they must, a run ends in one line before it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import conftest
from tests.docs.pages import ROOT


@pytest.mark.parametrize("flags", [(), ("-n", "2")])
def test_a_cache_folder_that_cannot_be_written_ends_a_run_with_one_line(
    tmp_path: Path, flags: tuple[str, ...]
):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "cache"
    done = subprocess.run(
        (
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            *flags,
            "tests/suite/test_room.py",
        ),
        cwd=ROOT,
        env=os.environ | {"PACELINE_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert done.stdout == ""
    assert done.stderr.strip() == f"ERROR: {folder}: Not a directory; set PACELINE_CACHE_DIR"


def test_a_full_disk_is_told_and_where_there_is_room_nothing_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    conftest.require_room(tmp_path / "made", "TMPDIR")
    assert list((tmp_path / "made").iterdir()) == []
    monkeypatch.setattr(conftest, "NEEDED_BYTES", 1 << 60)
    with pytest.raises(pytest.UsageError, match=r"is full: tests need .* or set TMPDIR$"):
        conftest.require_room(tmp_path, "TMPDIR")
