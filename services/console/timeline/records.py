"""Rounds as plain records: what a trace file holds, one JSON object a line.

The first line says what the file is and names the session; each further line is one round. A
file whose end is missing shows the rounds that it has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline import Session, SessionRound
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.contract.errors import StartError
from services.runtime.atomic_file import write_whole

KIND, VERSION = "paceline trace", 1


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class Figures(_Part):
    """The figures of a round; times in milliseconds."""

    index: int
    epoch: int
    draft_tokens: int = Field(ge=0)
    accepted_tokens: int = Field(ge=0)
    emitted_tokens: int = Field(ge=0)
    draft_ms: float = Field(ge=0, allow_inf_nan=False)
    verify_ms: float = Field(ge=0, allow_inf_nan=False)
    queue_ms: float = Field(ge=0, allow_inf_nan=False)
    round_ms: float = Field(ge=0, allow_inf_nan=False)
    batch_size: int = Field(ge=0)
    drafter: str
    verifier: str
    rejection_sample_method: str


class Record(_Part):
    """One round, as the server told it."""

    term: int
    offset: int = Field(ge=0)
    started_unix_ms: float = Field(ge=0, allow_inf_nan=False)
    stats: Figures
    pieces: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()

    @classmethod
    def of(cls, told: SessionRound) -> Record:
        """From the client's record."""
        return cls.model_validate(asdict(told))


@dataclass(frozen=True, slots=True)
class Trace:
    """A session and its rounds. `status` as the server last said; `cut`: the file ended early."""

    session_id: str
    status: str = ""
    records: Sequence[Record] = field(default_factory=tuple)
    cut: bool = False

    @classmethod
    def of(cls, session: Session, records: Sequence[Record]) -> Trace:
        """Of what the server said of a session, with the rounds gathered so far."""
        return cls(session.session_id, session.status.value, tuple(records))


def save(path: Path, trace: Trace) -> None:
    """Write a trace file. Raises StartError where it cannot be written."""
    write_whole("--save", path, "".join(f"{line}\n" for line in _lines(trace)))


def _lines(trace: Trace) -> Iterator[str]:
    head = {"kind": KIND, "version": VERSION, "session": trace.session_id, "status": trace.status}
    yield json.dumps(head, ensure_ascii=False)
    for record in trace.records:
        yield record.model_dump_json()


def load(path: Path) -> Trace:
    """Read a trace file, as far as it goes. Raises StartError for what is no trace file."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise StartError(f"--file: cannot read {path}: {error.strerror}") from error
    head = _head(path, lines)
    records, whole = _records(lines[1:])
    return Trace(str(head.get("session", "")), str(head.get("status", "")), records, not whole)


def _head(path: Path, lines: Sequence[str]) -> dict[str, Any]:
    try:
        head = json.loads(lines[0])
        known = head["kind"] == KIND
    except (IndexError, ValueError, LookupError, TypeError):
        known = False
    if not known:
        raise StartError(f"--file: {path} is no trace file; paceline trace --save writes one")
    if head.get("version") != VERSION:
        raise StartError(f"--file: {path} has version {head.get('version')}, this reads {VERSION}")
    return dict(head)


def _records(lines: Iterable[str]) -> tuple[tuple[Record, ...], bool]:
    """The rounds up to the first line that is none, and whether that was the end."""
    records = []
    for line in lines:
        try:
            records.append(Record.model_validate_json(line))
        except ValidationError:
            return tuple(records), False
    return tuple(records), True
