"""Without room for temporary files one line says what to do."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections import namedtuple

import pytest
from paceline import PacelineError as ClientError

from services.contract.errors import StartError
from services.runtime.temporary import for_temporary_files

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def full(tmp_path, monkeypatch):
    """A folder for temporary files on a disk where almost nothing is free."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(10, 10, 4096))
    return tmp_path


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        StartError("verifier-1 did not start: exit status 1, without a word"),
        ClientError("the session store refused"),
    ],
)
def test_a_full_disk_is_named_with_what_happened(full, failure):
    with pytest.raises(StartError) as told, for_temporary_files(ClientError):
        raise failure
    assert str(told.value) == (
        f"{full} is full; make room, or name another folder with TMPDIR ({failure})"
    )


def test_no_folder_at_all_is_told(monkeypatch):
    def nowhere():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    told = "no folder for temporary files can be written; make room, or name another"
    with pytest.raises(StartError, match=told), for_temporary_files():
        tempfile.gettempdir()


def test_where_there_is_room_a_failure_stays_what_it_was():
    failure = StartError("verifier-1 did not start: no weights")
    with pytest.raises(StartError) as told, for_temporary_files():
        raise failure
    assert told.value is failure


def test_other_failures_are_not_of_the_disk(full):
    with pytest.raises(ValueError, match="ours"), for_temporary_files():
        raise ValueError("ours")
