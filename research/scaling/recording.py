"""What was recorded: the scalers' expressions over time, in a file that is JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

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

    def values(self, tier: str, seconds: float) -> dict[str, float | None]:
        """What each trigger of a tier said last at that time; after the end, what it said then."""
        index = max(place for place, at in enumerate(self.times) if at <= seconds or not place)
        return {name: signal.values[index] for name, signal in self.signals[tier].items()}

    def sessions_at(self, seconds: float) -> float | None:
        """Sessions open at that time."""
        index = max(place for place, at in enumerate(self.times) if at <= seconds or not place)
        return self.sessions[index]


def write_recording(path: Path, recording: Recording) -> None:
    """In a folder that is made. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_text(recording))


def read_recording(path: Path) -> Recording:
    """Raises StartError, one line, for a file that is missing or is none."""
    try:
        content = json.loads(path.read_text())
        signals = {
            tier: {
                name: Signal(one["query"], tuple(one["values"])) for name, one in triggers.items()
            }
            for tier, triggers in content["signals"].items()
        }
        return Recording(
            content["command"],
            content["began"],
            content["about"],
            content["replicas"],
            tuple(content["times"]),
            tuple(content["sessions"]),
            signals,
        )
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError):
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
