"""What was recorded: the scalers' expressions over time, in a file that is JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from services.contract.errors import StartError

Row = tuple[float | None, ...]
"""A value for each time; None = the expression gave none."""


@dataclass(frozen=True, slots=True)
class Signal:
    """A trigger's expression, and its value at each time."""

    query: str
    values: Row


@dataclass(frozen=True, slots=True)
class Recording:
    """Signals by tier and trigger. `times` in seconds since the load began."""

    command: str
    began: str
    about: Mapping[str, object]
    replicas: Mapping[str, int]
    times: tuple[float, ...]
    sessions: Row
    signals: Mapping[str, Mapping[str, Signal]]


def table(recording: Recording, every_s: float) -> str:
    """A line every so often: the sessions, and what each expression said."""
    columns = {"sessions": recording.sessions}
    for triggers in recording.signals.values():
        columns |= {name: signal.values for name, signal in triggers.items()}
    lines = [f"{'time':>5}" + "".join(f"{name:>10}" for name in columns)]
    for index, at in enumerate(recording.times):
        if at % every_s == 0:
            cells = "".join(f"{_number(values[index]):>10}" for values in columns.values())
            lines.append(f"{at // 60:>2.0f}:{at % 60:02.0f}{cells}")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def write_recording(path: Path, recording: Recording) -> None:
    """In a folder that is made. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_text(recording))


def read_recording(path: Path) -> Recording:
    """Raises StartError, one line, for a file that is missing or is none."""
    try:
        return TypeAdapter(Recording).validate_json(path.read_bytes())
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError:
        raise StartError(f"{path} is no recording of research.scaling") from None


def _text(recording: Recording) -> str:
    """As JSON, in lines that can be read and compared: one for each part and each signal."""
    content = asdict(recording)
    tiers = [
        _object(tier, [_entry(name, signal) for name, signal in triggers.items()])
        for tier, triggers in content.pop("signals").items()
    ]
    parts = [_entry(name, part) for name, part in content.items()]
    return "{\n" + ",\n".join([*parts, _object("signals", tiers)]) + "\n}\n"


def _object(name: str, entries: Sequence[str]) -> str:
    return f"{json.dumps(name)}: {{\n" + ",\n".join(entries) + "\n}"


def _entry(name: str, value: object) -> str:
    return f"{json.dumps(name)}: {json.dumps(value)}"
